'use strict';
// ioredis: scripts as commands, alone, in pipelines and in transactions, in RESP2 and RESP3; and what scripts
// return.

const crypto = require('node:crypto');
const Redis = require('ioredis');
const { check, main, until, errorOf } = require('./check');

const COMMANDS = {
  bump: { numberOfKeys: 1, lua: "return redis.call('INCRBY', KEYS[1], ARGV[1] or 1)" },
  mirror: { lua: 'return {#KEYS, KEYS, ARGV}' },
  peek: { numberOfKeys: 1, readOnly: true, lua: "return {redis.call('TYPE', KEYS[1]).ok, redis.call('EXISTS', KEYS[1])}" },
  raw: { numberOfKeys: 1, lua: "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])" },
  fail: { numberOfKeys: 0, lua: "return redis.error_reply('MINE own failure')" },
  hide: {
    numberOfKeys: 2,
    lua: "redis.call('SET', KEYS[1] .. ':' .. KEYS[2], ARGV[1]) return redis.call('KEYS', KEYS[1] .. '*')",
  },
};

const PROTOCOLS = [2, 3];

const clientOf = (t, options = {}) => t.client({ scripts: COMMANDS, ...options });

/** Runs a check once in each protocol. */
function checkBoth(name, run) {
  for (const protocol of PROTOCOLS) check(`${name}, in RESP${protocol}`, (t) => run(t, { protocol }));
}

const outcome = ([error, value]) => (error ? `${error.name}: ${error.message}` : value);

/** Hash and line differ with the text of a script, not from run to run. */
const failed = (promise) => errorOf(promise);

checkBoth('scripts are commands', async (t, options) => {
  const redis = clientOf(t, options);
  t.same('bump', [await redis.bump('n', 5), await redis.bump('n', 2), await redis.bump('n')], [5, 7, 8]);
  t.see('mirror', await redis.mirror(2, 'a', 'b', 'x', 'y', 3.5));
  t.see('without keys', await redis.mirror(0));
  t.see('read only', await redis.peek('n'));
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
  t.same('bytes', (await redis.rawBuffer('bytes', bytes)).equals(bytes), true);
  t.see('failure', await failed(redis.fail()));
  t.see('keys by name', (await redis.hide('a', 'b', 1)).sort());
  t.see('too few keys', await failed(redis.call('EVAL', 'return 1', 3, 'a')));
});

checkBoth('keys have a prefix', async (t, options) => {
  const redis = clientOf(t, { ...options, keyPrefix: 'app:' });
  await redis.bump('n', 3);
  t.see('mirror', await redis.mirror(1, 'k', 'v'));
  await t.seeKeys('keys');
});

checkBoth('scripts in pipelines', async (t, options) => {
  const redis = clientOf(t, options);
  const run = async () =>
    (await redis.pipeline().bump('p', 1).set('x', 'y').mirror(1, 'k', 'v').fail().lpush('x', 1).bump('p', 1).exec()).map(outcome);
  t.see('first', await run());
  await redis.script('FLUSH');
  t.see('after the server has forgotten', await run());
  const many = redis.pipeline();
  for (let i = 0; i < 500; i++) many.bump(`k${i % 7}`, i);
  const results = (await many.exec()).map(outcome);
  t.see('many', [results.length, results.at(-1), results[250]]);
});

checkBoth('scripts in transactions', async (t, options) => {
  const redis = clientOf(t, options);
  const run = async () => (await redis.multi().bump('m', 1).get('m').fail().mirror(0, 'a').bump('m', 1).exec()).map(outcome);
  t.see('first', await run());
  t.see('again', await run());
  await redis.script('FLUSH');
  t.see('after the server has forgotten', await failed(run()));
  t.see('value', await redis.get('m'));
  await redis.watch('m');
  await clientOf(t, options).bump('m', 10);
  t.see('watched', await redis.multi().bump('m', 1).exec());
  t.see('untouched', await redis.get('m'));
});

checkBoth('pipelines by themselves', async (t, options) => {
  const redis = clientOf(t, { ...options, enableAutoPipelining: true });
  const work = Array.from({ length: 300 }, (_, i) =>
    i % 3 === 0 ? redis.bump('a', 1) : i % 3 === 1 ? redis.incr('a') : redis.mirror(1, 'k', i),
  );
  const results = await Promise.all(work);
  const numbers = results.filter((value) => typeof value === 'number');
  t.same('counted', [numbers.length, Math.max(...numbers), new Set(numbers).size], [200, 200, 200]);
  t.see('mirrored', results.filter((value) => typeof value !== 'number').slice(0, 3));
  await redis.script('FLUSH');
  t.see('after the server has forgotten', await Promise.all([redis.bump('b', 1), redis.get('b'), redis.bump('b', 1)]));
});

checkBoth('by hash, and by text when the server does not know it', async (t, options) => {
  const redis = t.client(options);
  const text = "return {KEYS[1], ARGV[1], redis.call('INCR', KEYS[1])}";
  const hash = crypto.createHash('sha1').update(text).digest('hex');
  t.see('unknown', await failed(redis.evalsha(hash, 1, 'k', 'v')));
  t.see('exists', await redis.script('EXISTS', hash));
  t.see('text', await redis.eval(text, 1, 'k', 'v'));
  t.see('hash', await redis.evalsha(hash, 1, 'k', 'v'));
  t.see('hash in capitals', await redis.evalsha(hash.toUpperCase(), 1, 'k', 'v'));
  await redis.script('FLUSH', 'SYNC');
  t.same('load', await redis.script('LOAD', text), hash);
  t.see('exists now', await redis.script('EXISTS', hash, 'f'.repeat(40), hash));
  t.see('loaded', await redis.evalsha(hash, 1, 'k', 'v'));
  t.see('does not compile', await failed(redis.script('LOAD', 'return (')));
});

const RETURNED = [
  'return nil',
  'return true',
  'return false',
  'return 3.99',
  'return -3.99',
  "return '3.99'",
  'return {1, 2, nil, 4}',
  'return {}',
  'return {a = 1}',
  'return {ok = "FINE"}',
  'return {err = "MY error"}',
  'return redis.status_reply("S")',
  'return {1, {2, {3, "x"}}, false, true}',
  'return {err = "no code"}',
  'return redis.error_reply("two words")',
  'return 2^53',
  'return 1e300',
  'return tostring(0.1) .. "|" .. tostring(1e15) .. "|" .. 1e100',
  "return redis.call('HGETALL', KEYS[1])",
  "redis.setresp(3) return redis.call('HGETALL', KEYS[1])",
  'redis.setresp(3) return {double = 1.5}',
  'redis.setresp(3) return {map = {a = 1}}',
  'return {double = 1.5}',
  "redis.setresp(3) return redis.call('ZSCORE', KEYS[2], 'm')",
  "return redis.call('ZSCORE', KEYS[2], 'm')",
  'redis.setresp(3) return {set = {x = true}}',
  "return redis.call('PING')",
  "return type(redis.call('GET', 'none'))",
  "redis.setresp(3) return type(redis.call('GET', 'none'))",
  "return redis.call('SET', 'a', 'b', 'NX', 'GET')",
  "return redis.sha1hex('abc')",
  'return _VERSION',
  'return {redis.REDIS_VERSION ~= nil, redis.LOG_WARNING}',
  "return table.concat({1, 2.5, 'x'}, ',')",
  "return string.format('%5.2f|%d|%q|%s', 1.005, 42, 'a\\nb', 'z')",
  "return {string.byte('é', 1, -1)}",
  "return {('a,b,,c'):gsub(',', ';')}",
  "local t = {} for w in ('k=v, x=y'):gmatch('(%w+=%w+)') do t[#t + 1] = w end return t",
  "return tostring(tonumber('0x10')) .. tostring(tonumber('z', 36)) .. tostring(tonumber('nope'))",
  'return {select("#", unpack({1, 2, 3})), math.floor(-1.5), 7 % -3, math.huge > 1}',
];

checkBoth('what scripts return', async (t, options) => {
  const redis = t.client(options);
  await redis.hset('h', { a: 1, b: 'two' });
  await redis.zadd('z', 1.25, 'm');
  for (const text of RETURNED) {
    const value = await redis.eval(text, 2, 'h', 'z').catch((error) => `${error.name}: ${error.message}`);
    t.see(text, value instanceof Map ? [...value] : value instanceof Set ? [...value] : value);
  }
});

// Nothing of what later versions allow: they have os.clock, and let blocking commands run without waiting.
const WRONG = [
  'return',
  'retrun 1',
  "return redis.call('NOPE')",
  "return redis.call('GET')",
  "return redis.call('LPUSH', 's', 1)",
  "return redis.pcall('LPUSH', 's', 1)",
  "local r = redis.pcall('LPUSH', 's', 1) return r.err",
  "local r = redis.pcall('NOPE') return {type(r), r.err}",
  'return redis.call()',
  'return redis.call(1, {})',
  'error("plain")',
  'error({err = "TABLE text"})',
  'error()',
  'return nothing',
  'something = 1',
  'local x = nil; return x.y',
  'return {} + 1',
  'return #5',
  "return redis.call('SUBSCRIBE', 'c')",
  "return redis.call('EVAL', 'return 1', 0)",
  "return redis.call('MULTI')",
  "return redis.call('WATCH', 'a')",
  "return redis.call('WAIT', 1, 1)",
  "return {pcall(error, 'caught')}",
  "return {pcall(redis.call, 'NOPE')}",
  "return select(2, xpcall(function() error('deep') end, function(e) return 'handled ' .. e end))",
  'return redis.error_reply()',
  'return redis.status_reply(1)',
  'return redis.sha1hex()',
  "return redis.log('x')",
  'return redis.setresp(4)',
  'return loadstring("return 1 +")',
  "return (loadstring('return 40 + 2'))()",
  'return print',
  'return io',
  'return require',
  "return dofile('x')",
  'return string.rep("x", -1)',
  "redis.register_function('f', function() end)",
  "return redis.call('SET', 's', 1, 'EX')",
  '#!lua name=x\nreturn 1',
  "#!lua flags=no-writes\nreturn redis.call('SET', 'a', 1)",
  '#!lua flags=nonsense\nreturn 1',
  '#!python\nreturn 1',
  '#!lua flags=allow-stale,no-cluster\nreturn 1',
];

check('errors of scripts', async (t) => {
  const redis = t.client();
  await redis.set('s', 'text');
  for (const text of WRONG) t.see(text, await redis.eval(text, 0).catch((error) => `${error.name}: ${error.message}`));
  t.see('write where none may be', await failed(redis.eval_ro("return redis.call('SET', KEYS[1], 1)", 1, 's')));
  t.see('read there', await redis.eval_ro("return redis.call('GET', KEYS[1])", 1, 's'));
  t.see('number of keys', [await failed(redis.eval('return 1', -1)), await failed(redis.eval('return 1', 'x'))]);
  await t.seeKeys('keys');
});

const LIBRARIES = {
  'cjson there and back': `return cjson.encode(cjson.decode(ARGV[1]))`,
  'cjson of tables': `return {cjson.encode({1, 2, 3}), cjson.encode({}), cjson.encode({a = {b = cjson.null}}), cjson.encode(0.1), cjson.encode(12345678901234567890)}`,
  'cjson of strings': `return cjson.encode('quote " slash / back \\\\ tab \\t unicode é control ' .. string.char(1))`,
  'cjson refuses': `return {select(2, pcall(cjson.decode, '{"a":')), select(2, pcall(cjson.encode, {[1] = 1, x = 2})), select(2, pcall(cjson.decode, 'nope'))}`,
  'cmsgpack there and back': `local t = cmsgpack.unpack(cmsgpack.pack({1, -1, 'x', {a = true}, 1.5, 2^40})) return {t[1], t[2], t[3], tostring(t[4].a), tostring(t[5]), tostring(t[6])}`,
  'cmsgpack of several': `return {cmsgpack.unpack(cmsgpack.pack(1, 'two', false, {3}))}`,
  'cmsgpack in bytes': `local out = {} for c in cmsgpack.pack({1, 'a', {b = 2}, -200, 70000, 0.5}):gmatch('.') do out[#out + 1] = c:byte() end return out`,
  struct: `local s = struct.pack('>I2i4Bs', 258, -5, 7, 'end') return {#s, struct.unpack('>I2i4Bs', s)}`,
  'struct sizes': `return {struct.size('>I8bd'), struct.size('<hH'), struct.pack('<d', 1.5):byte(1, -1)}`,
  bit: `return {bit.band(0xff, 0x0f), bit.bor(1, 2), bit.bxor(5, 1), bit.bnot(0), bit.lshift(1, 31), bit.rshift(-1, 28), bit.arshift(-16, 2), bit.tohex(255, 4), bit.rol(1, 33), bit.bswap(1), bit.tobit(2^32 + 1)}`,
  table: `local t = {5, 3, 9, 1} table.sort(t, function(a, b) return a > b end) table.insert(t, 2, 'in') table.remove(t) return t`,
  'random numbers': `math.randomseed(42) return {math.random(1000), math.random(1000), tostring(math.random())}`,
};

check('libraries of scripts', async (t) => {
  const redis = t.client();
  const document = JSON.stringify({ list: [1, 2.5, -3, 1e10, true, null, 'é', {}], text: 'a/b"c\\' });
  // The order of an object's members is that of Lua's tables.
  for (const [label, text] of Object.entries(LIBRARIES)) {
    t.see(label, await redis.eval(text, 0, document).catch((error) => `${error.name}: ${error.message}`));
  }
});

check('a script that does not end is killed', async (t) => {
  const redis = t.client();
  const other = t.client();
  await redis.config('SET', 'busy-reply-threshold', 50);
  t.see('nothing runs', await failed(other.script('KILL')));
  const script = "redis.call('GET', KEYS[1]) while true do end";
  const end = failed(redis.eval(script, 1, 'held'));
  await until(async () => /BUSY/.test(await failed(other.set('held', 1))));
  t.see('busy', await failed(other.set('held', 1)));
  t.see('kill', await other.script('KILL'));
  t.see('its end', await end);
  t.see('after', [await redis.set('held', 2), await other.get('held')]);
  await redis.config('SET', 'busy-reply-threshold', 5000);
});

check('scripts see and write all or nothing, whatever keys they choose', async (t) => {
  const n_accounts = 40;
  const each = 100;
  const scripts = {
    // The keys are made up, or read from other keys: none is declared.
    transfer: {
      numberOfKeys: 0,
      lua: `
      local from, to = 'account:' .. ARGV[1], redis.call('HGET', 'route', ARGV[2])
      local amount = math.min(tonumber(ARGV[3]), tonumber(redis.call('GET', from)))
      redis.call('DECRBY', from, amount)
      redis.call('INCRBY', to, amount)
      redis.call('RPUSH', 'journal:' .. amount % 3, from)
      return amount`,
    },
    total: {
      numberOfKeys: 0,
      readOnly: true,
      lua: `
      local sum = 0
      for i = 0, tonumber(ARGV[1]) - 1 do sum = sum + redis.call('GET', 'account:' .. i) end
      return sum`,
    },
  };
  const setup = t.client();
  for (let i = 0; i < n_accounts; i++) await setup.multi().set(`account:${i}`, each).hset('route', i, `account:${i}`).exec();
  const totals = new Set();
  await Promise.all(
    Array.from({ length: 8 }, async (_, c) => {
      const redis = t.client({ scripts });
      for (let i = 0; i < 150; i++) {
        await redis.transfer((c * 7 + i) % n_accounts, (c * 11 + i * 3) % n_accounts, (i % 9) + 1);
        if (i % 10 === 0) totals.add(await redis.total(n_accounts));
      }
    }),
  );
  t.same('totals', [...totals], [n_accounts * each]);
  const journals = await Promise.all([0, 1, 2].map((i) => setup.llen(`journal:${i}`)));
  t.same(
    'entries',
    journals.reduce((sum, n) => sum + n),
    8 * 150,
  );
});

main();
