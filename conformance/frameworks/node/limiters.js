'use strict';
// Limiters of rates: rate-limiter-flexible, rate-limit-redis (of Express), and Bottleneck over several
// processes' connections.

const Redis = require('ioredis');
const Bottleneck = require('bottleneck');
const { createClient } = require('redis');
const {
  RateLimiterRedis,
  RateLimiterUnion,
  RLWrapperBlackAndWhite,
  BurstyRateLimiter,
  RateLimiterQueue,
} = require('rate-limiter-flexible');
const { RedisStore } = require('rate-limit-redis');
const { check, main, until, errorOf } = require('./check');

const HOUR_SECONDS = 3600;

// rate-limiter-flexible.

/** What a limiter answers, without times. */
const told = (promise) =>
  promise.then(
    (result) =>
      result && { ok: true, consumed: result.consumedPoints, left: result.remainingPoints, first: result.isFirstInDuration },
    (result) =>
      result instanceof Error
        ? `${result.name}: ${result.message}`
        : { ok: false, consumed: result.consumedPoints, left: result.remainingPoints, wait: result.msBeforeNext > 0 },
  );

const limiterOf = (t, options) =>
  new RateLimiterRedis({ storeClient: t.client(), points: 5, duration: HOUR_SECONDS, ...options });

async function seeLimiter(t, limiter) {
  const answers = [];
  for (const n of [1, 2, 1, 2, 1]) answers.push(await told(limiter.consume('me', n)));
  t.see('consumed', answers);
  t.see('another', await told(limiter.consume('you', 5)));
  t.see('got', await told(limiter.get('me')));
  t.see('nobody', await told(limiter.get('nobody')));
  t.see('penalty and reward', [await told(limiter.penalty('me', 3)), await told(limiter.reward('me', 4))]);
  t.see('set', [
    await told(limiter.set('them', 4, 100)),
    await told(limiter.consume('them')),
    await told(limiter.consume('them')),
  ]);
  t.see('deleted', [await limiter.delete('me'), await limiter.delete('me'), await told(limiter.consume('me'))]);
  await t.seeKeys('keys');
}

check('rate-limiter-flexible: points', (t) => seeLimiter(t, limiterOf(t)));

check('rate-limiter-flexible: points, by node-redis', async (t) => {
  const client = t.closing(createClient({ socket: t.connection }), () => client.destroy());
  await client.connect();
  await seeLimiter(t, limiterOf(t, { storeClient: client, useRedisPackage: true }));
});

check('rate-limiter-flexible: a block', async (t) => {
  const limiter = limiterOf(t, { points: 2, blockDuration: 2 * HOUR_SECONDS, inMemoryBlockOnConsumed: 4 });
  const answers = [];
  for (let i = 0; i < 6; i++) answers.push(await told(limiter.consume('me')));
  t.see('consumed', answers);
  await limiter.block('you', HOUR_SECONDS);
  t.see('blocked', await told(limiter.consume('you')));
  t.same('for so long', (await t.client().pttl('rlflx:me')) > HOUR_SECONDS * 1000, true);
});

check('rate-limiter-flexible: points come back', async (t) => {
  const limiter = limiterOf(t, { points: 1, duration: 1 });
  const start = Date.now();
  t.see('first', [await told(limiter.consume('me')), (await told(limiter.consume('me'))).ok]);
  await until(async () => (await told(limiter.get('me'))) === null);
  t.same('took its time', Date.now() - start >= 900, true);
  t.see('again', await told(limiter.consume('me')));
});

check('rate-limiter-flexible: several at once', async (t) => {
  const redis = t.client();
  const options = { storeClient: redis, duration: HOUR_SECONDS };
  const union = new RateLimiterUnion(
    new RateLimiterRedis({ ...options, keyPrefix: 'a', points: 2 }),
    new RateLimiterRedis({ ...options, keyPrefix: 'b', points: 3 }),
  );
  const answers = [];
  for (let i = 0; i < 3; i++)
    answers.push(
      await union.consume('me').then(
        () => 'well',
        (result) => Object.keys(result),
      ),
    );
  t.see('union', answers);
  const bursty = new BurstyRateLimiter(
    limiterOf(t, { points: 1, keyPrefix: 'slow' }),
    limiterOf(t, { points: 2, keyPrefix: 'burst' }),
  );
  t.see('bursty', [
    await told(bursty.consume('me')),
    await told(bursty.consume('me')),
    await told(bursty.consume('me')),
    await told(bursty.consume('me')),
  ]);
  const listed = new RLWrapperBlackAndWhite({ limiter: limiterOf(t, { points: 1 }), whiteList: ['friend'], blackList: ['foe'] });
  t.see('listed', [await told(listed.consume('friend', 9)), (await told(listed.consume('foe'))).ok]);
  await t.seeKeys('keys');
});

check('rate-limiter-flexible: side by side', async (t) => {
  const limiters = Array.from({ length: 5 }, () => limiterOf(t, { points: 70 }));
  const answers = await Promise.all(limiters.flatMap((limiter) => Array.from({ length: 20 }, () => told(limiter.consume('me')))));
  t.same('let through', answers.filter(({ ok }) => ok).length, 70);
  t.see(
    'left',
    answers
      .filter(({ ok }) => ok)
      .map(({ left }) => left)
      .sort((a, b) => a - b),
  );
});

check('rate-limiter-flexible: a queue', async (t) => {
  const queue = new RateLimiterQueue(limiterOf(t, { points: 2, duration: 1 }), { maxQueueSize: 3 });
  const order = [];
  const start = Date.now();
  await Promise.all([1, 2, 3, 4].map((n) => queue.removeTokens(1).then(() => order.push(n))));
  t.same('order', order, [1, 2, 3, 4]);
  t.same('took its time', Date.now() - start >= 500, true);
  t.see('too many', await errorOf(queue.removeTokens(3)));
});

// rate-limit-redis.

check('rate-limit-redis: the store of Express', async (t) => {
  const redis = t.client();
  const store = new RedisStore({ sendCommand: (...words) => redis.call(...words), prefix: 'express:' });
  await store.init({ windowMs: HOUR_SECONDS * 1000 });
  const hits = async (key) => {
    const { totalHits, resetTime } = await store.increment(key);
    return [totalHits, resetTime > Date.now()];
  };
  t.see('hits', [await hits('me'), await hits('me'), await hits('you'), await hits('me')]);
  await store.decrement('me');
  t.see('got', [(await store.get('me')).totalHits, (await store.get('nobody'))?.totalHits ?? null]);
  await redis.script('FLUSH');
  t.see('after the server has forgotten', await hits('me'));
  await store.resetKey('me');
  t.see('reset', await hits('me'));
  await t.seeKeys('keys');
});

// Bottleneck.

function bottleneckOf(t, options) {
  const limiter = new Bottleneck({ id: 'cluster', datastore: 'ioredis', Redis, clientOptions: { ...t.connection }, ...options });
  limiter.on('error', (error) => t.see('error of a limiter', error.message));
  return t.closing(limiter, () => limiter.disconnect(true));
}

check('Bottleneck: so many at a time over all', async (t) => {
  const limiters = Array.from({ length: 3 }, () => bottleneckOf(t, { maxConcurrent: 2 }));
  await Promise.all(limiters.map((limiter) => limiter.ready()));
  const counter = { running: 0, most: 0, n: 0 };
  const work = async () => {
    counter.most = Math.max(counter.most, ++counter.running);
    await new Promise(setImmediate);
    counter.running--;
    return ++counter.n;
  };
  await Promise.all(limiters.flatMap((limiter) => Array.from({ length: 10 }, () => limiter.schedule(work))));
  t.same('ran', [counter.n, counter.most <= 2], [30, true]);
  t.see('done', [(await limiters[0].done()) >= 0, await limiters[0].running()]);
  await t.seeKeys('keys');
});

check('Bottleneck: a pause between two', async (t) => {
  const limiter = bottleneckOf(t, { minTime: 30 });
  await limiter.ready();
  const start = Date.now();
  const times = await Promise.all([1, 2, 3, 4].map(() => limiter.schedule(async () => Date.now())));
  // Three pauses, less what rounding and timers take.
  t.same('took its time', times[3] - start >= 80, true);
  t.same(
    'order',
    times.every((time, i) => i === 0 || time >= times[i - 1]),
    true,
  );
});

check('Bottleneck: a reservoir', async (t) => {
  const limiter = bottleneckOf(t, { reservoir: 5 });
  await limiter.ready();
  const done = [];
  const jobs = Array.from({ length: 8 }, (_, i) =>
    limiter.schedule({ weight: i === 0 ? 2 : 1 }, async () => {
      done.push(i);
    }),
  );
  await Promise.all(jobs.slice(0, 4));
  t.see('left', [await limiter.currentReservoir(), done]);
  t.see('more', await limiter.incrementReservoir(2));
  await Promise.all(jobs.slice(4, 6));
  await limiter.updateSettings({ reservoir: 10 });
  await Promise.all(jobs);
  t.see('all', [await limiter.currentReservoir(), done]);
  t.see('check', [await limiter.check(10), await limiter.check(11)]);
});

check('Bottleneck: priorities, and what is too much', async (t) => {
  const limiter = bottleneckOf(t, { maxConcurrent: 1, highWater: 4, strategy: Bottleneck.strategy.LEAK });
  await limiter.ready();
  const dropped = [];
  const order = [];
  limiter.on('dropped', (job) => dropped.push(job.args[0]));
  let release;
  const first = limiter.schedule(
    { priority: 5 },
    () =>
      new Promise((resolve) => {
        release = resolve;
      }),
  );
  await until(() => release);
  const jobs = [7, 1, 5, 3, 2, 9].map((priority) =>
    limiter
      .schedule(
        { priority },
        async (p) => {
          order.push(p);
        },
        priority,
      )
      .catch((error) => error.message),
  );
  await until(async () => dropped.length === 2);
  release();
  await first;
  t.see('ends', await Promise.all(jobs));
  t.see('order', order);
  t.see('dropped', dropped);
});

check('Bottleneck: a group, and retries', async (t) => {
  const group = new Bottleneck.Group({
    id: 'group',
    datastore: 'ioredis',
    Redis,
    clientOptions: { ...t.connection },
    maxConcurrent: 1,
    timeout: 60_000,
  });
  t.closing(group, () => group.disconnect(true));
  const results = await Promise.all(['a', 'b', 'a', 'c', 'b'].map((key, i) => group.key(key).schedule(async () => `${key}${i}`)));
  t.same('results', results, ['a0', 'b1', 'a2', 'c3', 'b4']);
  t.see('keys of it', (await group.clusterKeys()).sort());
  t.see('one less', [await group.deleteKey('a'), (await group.clusterKeys()).sort()]);
  const limiter = bottleneckOf(t, { id: 'retrying', maxConcurrent: 2 });
  limiter.on('failed', async (error, info) => (info.retryCount < 2 ? 5 : undefined));
  let n = 0;
  t.same(
    'tried again',
    await limiter.schedule(async () => {
      if (++n < 3) throw new Error('not yet');
      return n;
    }),
    3,
  );
});

main();
