'use strict';
// Locks and semaphores: redlock and redis-semaphore.

const { default: Redlock } = require('redlock');
const { Mutex, Semaphore, MultiSemaphore, RedlockMutex } = require('redis-semaphore');
const { check, main, until, pause, errorOf } = require('./check');

const LONG = 60_000;

/** Without retries, so that a lock that is taken is told at once. */
const ONCE = { retryCount: 0 };

function redlockOf(t, settings = ONCE) {
  const redlock = new Redlock([t.client()], settings);
  redlock.on('error', () => {});
  return redlock;
}

const kind = (promise) =>
  promise.then(
    () => 'well',
    (error) => error.name,
  );

check('redlock: one holder at a time', async (t) => {
  const redlock = redlockOf(t);
  const lock = await redlock.acquire(['a'], LONG);
  t.same('second', await kind(redlock.acquire(['a'], LONG)), 'ExecutionError');
  t.see('reason', await errorOf(redlock.acquire(['a'], LONG)));
  await lock.release();
  t.see('released twice', await kind(lock.release()));
  const again = await redlock.acquire(['a'], LONG);
  const longer = await again.extend(2 * LONG);
  t.same('longer', longer.expiration > Date.now() + LONG, true);
  await t.seeKeys('keys');
  await longer.release();
  t.see('extended after the end', await kind(longer.extend(LONG)));
  await t.seeKeys('keys after');
});

check('redlock: several resources, all or none', async (t) => {
  const redlock = redlockOf(t);
  const lock = await redlock.acquire(['a', 'b', 'c'], LONG);
  t.same('overlapping', await kind(redlock.acquire(['c', 'd'], LONG)), 'ExecutionError');
  await t.seeKeys('keys');
  const other = await redlock.acquire(['d', 'e'], LONG);
  await lock.release();
  await t.seeKeys('keys after');
  await other.release();
});

check('redlock: a lock that ends by itself', async (t) => {
  const redlock = redlockOf(t);
  const lock = await redlock.acquire(['a'], 30);
  await until(async () => (await kind(redlock.acquire(['a'], LONG))) === 'well');
  t.same('it took its time', Date.now() >= lock.expiration - 10, true);
  t.see('too late', await kind(lock.release()));
});

check('redlock: a critical section of many', async (t) => {
  const counter = { n: 0, running: 0, most: 0 };
  const workers = Array.from({ length: 6 }, () => redlockOf(t, { retryCount: -1, retryDelay: 2, retryJitter: 3 }));
  await Promise.all(
    workers.map(async (redlock) => {
      for (let i = 0; i < 10; i++) {
        await redlock.using(['section', 'other'], LONG, async () => {
          counter.most = Math.max(counter.most, ++counter.running);
          const { n } = counter;
          await pause(0);
          counter.n = n + 1;
          counter.running--;
        });
      }
    }),
  );
  t.same('counted', [counter.n, counter.most], [60, 1]);
  await t.seeKeys('keys');
});

check('redis-semaphore: a mutex', async (t) => {
  const options = { lockTimeout: LONG, acquireAttemptsLimit: 1, refreshInterval: 0 };
  const one = new Mutex(t.client(), 'm', { ...options, identifier: 'one' });
  const two = new Mutex(t.client(), 'm', { ...options, identifier: 'two' });
  t.same('taken', [await one.tryAcquire(), await two.tryAcquire()], [true, false]);
  await two.release();
  t.same('another cannot free it', await two.tryAcquire(), false);
  const handed = new Mutex(t.client(), 'm', { ...options, identifier: 'one', acquiredExternally: true });
  t.same('handed over', await handed.tryAcquire(), true);
  await handed.release();
  t.same('freed', await two.tryAcquire(), true);
  await t.seeKeys('keys');
  await two.release();
});

check('redis-semaphore: a lost mutex is told', async (t) => {
  const redis = t.client();
  let lost;
  const loss = new Promise((resolve) => {
    lost = resolve;
  });
  const mutex = new Mutex(redis, 'm', {
    lockTimeout: LONG,
    refreshInterval: 10,
    onLockLost: (error) => lost(error.constructor.name),
  });
  await mutex.acquire();
  await redis.set('mutex:m', 'somebody else');
  t.same('told', await loss, 'LostLockError');
  await mutex.release();
  t.see('left alone', await redis.get('mutex:m'));
});

check('redis-semaphore: so many at a time', async (t) => {
  const counter = { running: 0, most: 0, n: 0 };
  await Promise.all(
    Array.from({ length: 8 }, async () => {
      const semaphore = new Semaphore(t.client(), 's', 3, {
        lockTimeout: LONG,
        acquireTimeout: LONG,
        retryInterval: 2,
        refreshInterval: 20,
      });
      for (let i = 0; i < 5; i++) {
        await semaphore.acquire();
        counter.most = Math.max(counter.most, ++counter.running);
        await pause(1);
        counter.running--;
        counter.n++;
        await semaphore.release();
      }
    }),
  );
  t.same('ran', counter.n, 40);
  t.same('never more than three', counter.most <= 3, true);
  await t.seeKeys('keys');
});

check('redis-semaphore: several permits each', async (t) => {
  const options = { lockTimeout: LONG, acquireAttemptsLimit: 1, refreshInterval: 0 };
  const take = (n) => new MultiSemaphore(t.client(), 'ms', 5, n, options);
  const [a, b, c] = [take(3), take(3), take(2)];
  t.same('taken', [await a.tryAcquire(), await b.tryAcquire(), await c.tryAcquire()], [true, false, true]);
  await t.seeKeys('keys');
  await a.release();
  t.same('then', await b.tryAcquire(), true);
  await b.release();
  await c.release();
  await t.seeKeys('keys after');
});

check('redis-semaphore: a mutex over several connections', async (t) => {
  const clients = [t.client({ db: 0 }), t.client({ db: 1 }), t.client({ db: 2 })];
  const options = { lockTimeout: LONG, acquireAttemptsLimit: 1, refreshInterval: 0 };
  const one = new RedlockMutex(clients, 'r', options);
  const two = new RedlockMutex(clients, 'r', options);
  t.same('taken', [await one.tryAcquire(), await two.tryAcquire()], [true, false]);
  t.see('in each database', await Promise.all(clients.map((client) => client.dbsize())));
  await one.release();
  t.same('then', await two.tryAcquire(), true);
  await two.release();
});

main();
