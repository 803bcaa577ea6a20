'use strict';
// node-redis: scripts and functions as methods of the client, alone and in transactions, in RESP2 and RESP3.

const { createClient, defineScript } = require('redis');
const { check, main, errorOf, until } = require('./check');

const scripts = {
  add: defineScript({
    NUMBER_OF_KEYS: 1,
    SCRIPT: "return redis.call('GET', KEYS[1]) + ARGV[1]",
    parseCommand(parser, key, n) {
      parser.pushKey(key);
      parser.push(String(n));
    },
    transformReply: (reply) => reply,
  }),
  pair: defineScript({
    NUMBER_OF_KEYS: 2,
    IS_READ_ONLY: true,
    SCRIPT: "return redis.call('MGET', KEYS[1], KEYS[2])",
    parseCommand(parser, one, two) {
      parser.pushKeys([one, two]);
    },
    transformReply: (reply) => reply,
  }),
};

const LIBRARY = `#!lua name=accounts
local function touch(key) redis.call('HSET', key, 'touched', 'yes') end
redis.register_function('deposit', function(keys, args)
  touch(keys[1])
  return redis.call('HINCRBY', keys[1], 'balance', args[1])
end)
redis.register_function{function_name='balance', callback=function(keys) return redis.call('HGET', keys[1], 'balance') end,
  flags={'no-writes'}, description='What there is'}
redis.register_function{function_name='all', callback=function(keys) return redis.call('HGETALL', keys[1]) end, flags={'no-writes'}}
`;

const functions = {
  accounts: {
    deposit: {
      NUMBER_OF_KEYS: 1,
      parseCommand(parser, key, n) {
        parser.pushKey(key);
        parser.push(String(n));
      },
      transformReply: (reply) => reply,
    },
    balance: {
      NUMBER_OF_KEYS: 1,
      IS_READ_ONLY: true,
      parseCommand(parser, key) {
        parser.pushKey(key);
      },
      transformReply: (reply) => reply,
    },
  },
};

async function clientOf(t, options = {}) {
  const client = createClient({ socket: { host: t.connection.host, port: t.port }, scripts, functions, ...options });
  client.on('error', (error) => t.see('error of a client', error.message));
  await client.connect();
  return t.closing(client, () => client.destroy());
}

function checkBoth(name, run) {
  for (const RESP of [2, 3]) check(`${name}, in RESP${RESP}`, async (t) => run(t, await clientOf(t, { RESP })));
}

/** Sorted, as plain values. */
const sorted = (list) => list.map((item) => JSON.stringify(item)).sort();

checkBoth('scripts', async (t, client) => {
  await client.set('n', '10');
  t.same('add', await client.add('n', 5), 15);
  t.see('pair', await client.pair('n', 'none'));
  await client.scriptFlush();
  t.same('after the server has forgotten', await client.add('n', 7), 17);
  t.see('in a transaction', await client.multi().add('n', 1).set('n', '20').add('n', 1).pair('n', 'n').exec());
  t.see('side by side', await Promise.all([client.add('n', 1), client.incr('n'), client.add('n', 1)]));
  t.see('failure', await errorOf(client.add('none', 1)));
  t.see('directly', await client.eval('return {KEYS, ARGV}', { keys: ['k'], arguments: ['a', 'b'] }));
  t.see('exists', await client.scriptExists([scripts.add.SHA1, 'f'.repeat(40)]));
});

checkBoth('functions', async (t, client) => {
  t.see('not yet', await errorOf(client.accounts.deposit('acc', 1)));
  t.same('load', await client.functionLoad(LIBRARY), 'accounts');
  t.see('twice', await errorOf(client.functionLoad(LIBRARY)));
  t.same('replace', await client.functionLoad(LIBRARY, { REPLACE: true }), 'accounts');
  t.same(
    'calls',
    [await client.accounts.deposit('acc', 5), await client.accounts.deposit('acc', 6), await client.accounts.balance('acc')],
    [5, 11, '11'],
  );
  t.see('all', await client.sendCommand(['FCALL', 'all', '1', 'acc']));
  t.see('read only', [
    await errorOf(client.fCallRo('deposit', { keys: ['acc'], arguments: ['1'] })),
    await client.fCallRo('balance', { keys: ['acc'] }),
  ]);
  t.see('in a transaction', await client.multi().accounts.deposit('acc', 1).accounts.balance('acc').exec());
  t.see('unknown', await errorOf(client.fCall('nothing', { keys: [] })));
  t.see('failure', await errorOf(client.fCall('deposit', { keys: ['acc'], arguments: ['x'] })));
  const [{ library_name, engine, library_code, functions }] = await client.functionListWithCode();
  t.see('list', [library_name, engine, library_code === LIBRARY, sorted(functions)]);
  t.see('list by name', [
    (await client.functionList({ LIBRARYNAME: 'acc*' })).length,
    (await client.functionList({ LIBRARYNAME: 'x*' })).length,
  ]);
});

check('functions are carried over', async (t) => {
  const client = await clientOf(t);
  await client.functionLoad(LIBRARY);
  const dump = Buffer.from(await client.withTypeMapping({ 36: Buffer }).functionDump());
  // Of both servers one could be given the other's dump; what its last bytes say of its version may differ.
  t.see('dump', [dump.length > LIBRARY.length / 4, dump[0]]);
  t.see('kept', await errorOf(client.functionRestore(dump)));
  await client.functionDelete('accounts');
  t.see('gone', [await errorOf(client.accounts.deposit('acc', 1)), await errorOf(client.functionDelete('accounts'))]);
  t.see('restore', await client.functionRestore(dump));
  t.same('works', await client.accounts.deposit('acc', 4), 4);
  t.see('again', [
    await client.functionRestore(dump, { mode: 'REPLACE' }),
    await client.functionRestore(dump, { mode: 'FLUSH' }),
  ]);
  t.see('broken', await errorOf(client.functionRestore(dump.subarray(0, dump.length - 1))));
  const { running_script, engines } = await client.functionStats();
  t.see('statistics', [running_script ?? null, JSON.stringify(engines)]);
  await client.functionFlush();
  t.see('flushed', await client.functionList());
});

check('libraries that are refused', async (t) => {
  const client = await clientOf(t);
  const wrong = [
    'return 1',
    '#!lua\nreturn 1',
    '#!lua name=a b\nreturn 1',
    '#!lua name=x\nreturn 1',
    '#!lua name=x bad=1\nreturn 1',
    '#!js name=x\n1',
    '#!lua name=x\nredis.register_function()',
    "#!lua name=x\nredis.register_function('f', 'g')",
    "#!lua name=x\nredis.register_function('a b', function() end)",
    "#!lua name=x\nredis.call('SET', 'a', 1)",
    "#!lua name=x\nredis.register_function('f', function() end) redis.register_function('f', function() end)",
    '#!lua name=x\nx = 1',
    '#!lua name=x\nreturn (',
    "#!lua name=x\nredis.register_function{function_name='f', callback=function() end, flags={'nope'}}",
    "#!lua name=x\nredis.register_function{function_name='f'}",
    '#!lua name=x\nerror("no")',
  ];
  for (const text of wrong) t.see(text, await errorOf(client.functionLoad(text)));
  await client.functionLoad("#!lua name=one\nredis.register_function('f', function() return 1 end)");
  t.see(
    'a name that is taken',
    await errorOf(client.functionLoad("#!lua name=two\nredis.register_function('f', function() return 2 end)")),
  );
  await client.functionFlush();
});

check('a function that does not end is killed', async (t) => {
  const client = await clientOf(t);
  const other = await clientOf(t);
  await client.configSet('busy-reply-threshold', '50');
  await client.functionLoad(
    "#!lua name=spin\nredis.register_function('spin', function(keys) redis.call('GET', keys[1]) while true do end end)",
  );
  const end = errorOf(client.fCall('spin', { keys: ['held'] }));
  await until(async () => /BUSY/.test(await errorOf(other.set('held', '1'))));
  t.see('busy', await errorOf(other.set('held', '1')));
  t.see('not by the other command', await errorOf(other.scriptKill()));
  const { running_script } = await other.functionStats();
  t.see('statistics', [running_script.name, running_script.command]);
  t.see('kill', await other.functionKill());
  t.see('its end', await end);
  await client.configSet('busy-reply-threshold', '5000');
  await client.functionFlush();
});

main();
