'use strict';
// BullMQ: the life of single jobs. Nearly every step of it is a script that builds the names of its keys.

const { fork } = require('node:child_process');
const { once } = require('node:events');
const { Queue, Worker, QueueEvents, UnrecoverableError, DelayedError, WaitingError } = require('bullmq');
const { createClient } = require('redis');
const { check, main, until, pause, errorOf } = require('./check');

const NAME = 'work';

const queueOf = (t, options = {}) => t.closing(new Queue(NAME, { connection: t.connection, ...options }));

/** A worker that notes its failures to work, which none of these checks brings about. */
function workerOf(t, processor, options = {}) {
  const worker = t.closing(new Worker(NAME, processor, { connection: t.connection, ...options }));
  worker.on('error', (error) => t.see('error of a worker', error.message));
  return worker;
}

/** Waits until so many jobs have ended, well or not. */
const ended = (queue, n) => until(async () => (await queue.getJobCountByTypes('completed', 'failed')) >= n);

const names = (n, prefix = 'job') => Array.from({ length: n }, (_, i) => `${prefix}-${i}`);

check('jobs run once each, in their order', async (t) => {
  const queue = queueOf(t);
  for (const name of names(20)) await queue.add(name, { text: `für ${name}`, nested: { list: [1, 2.5, null, 'x'] } });
  t.same('counts before', (await queue.getJobCounts()).waiting, 20);
  const ran = [];
  workerOf(t, async (job) => {
    ran.push([job.id, job.name, job.data]);
    return { of: job.name };
  });
  await ended(queue, 20);
  t.same(
    'order',
    ran.map(([, name]) => name),
    names(20),
  );
  t.see('jobs', ran);
  // Those that ended within the same millisecond come in the order of their identifiers.
  t.see('results', (await queue.getCompleted()).map((job) => [job.id, job.returnvalue, job.attemptsMade]).sort());
  t.see('counts after', await queue.getJobCounts());
  await t.seeKeys('keys', /stalled-check|marker/);
});

check('last in, first out, and in bulk', async (t) => {
  const queue = queueOf(t);
  const jobs = await queue.addBulk(names(8).map((name, i) => ({ name, data: { i }, opts: { lifo: i % 2 === 1 } })));
  t.see(
    'identifiers',
    jobs.map((job) => job.id),
  );
  const ran = [];
  workerOf(t, async (job) => {
    ran.push(job.name);
  });
  await ended(queue, 8);
  t.see('order', ran);
});

check("identifiers of one's own", async (t) => {
  const queue = queueOf(t);
  const events = t.closing(new QueueEvents(NAME, { connection: t.connection, lastEventId: '0-0' }));
  await events.waitUntilReady();
  const duplicate = once(events, 'duplicated');
  const first = await queue.add('first', { n: 1 }, { jobId: 'order-77' });
  const second = await queue.add('second', { n: 2 }, { jobId: 'order-77' });
  t.same('identifiers', [first.id, second.id], ['order-77', 'order-77']);
  t.see('event', (await duplicate)[0]);
  t.see('kept', (await queue.getJob('order-77')).name);
  t.see('numbers are refused', await errorOf(queue.add('third', {}, { jobId: '12' })));
  t.see('counts', await queue.getJobCounts());
});

check('delayed jobs run in the order of their times', async (t) => {
  const queue = queueOf(t);
  const timestamp = Date.now();
  const delays = { c: 150, a: 50, b: 100 };
  for (const [name, delay] of Object.entries(delays)) await queue.add(name, {}, { delay, timestamp });
  const ran = [];
  workerOf(t, async (job) => {
    ran.push([job.name, Date.now() >= timestamp + delays[job.name]]);
  });
  await ended(queue, 3);
  t.same('order', ran, [
    ['a', true],
    ['b', true],
    ['c', true],
  ]);
});

check('delays are changed, and jobs promoted', async (t) => {
  const queue = queueOf(t);
  const [one, two, three] = await Promise.all(['one', 'two', 'three'].map((name) => queue.add(name, {}, { delay: 3_600_000 })));
  t.same('delayed', await queue.getDelayedCount(), 3);
  await two.promote();
  t.see('promoted twice', await errorOf(two.promote()));
  await three.changeDelay(1);
  const ran = [];
  workerOf(t, async (job) => {
    ran.push(job.name);
  });
  await ended(queue, 2);
  t.see('states', [await one.getState(), await two.getState(), await three.getState()]);
  await queue.promoteJobs();
  await ended(queue, 3);
  t.same('all ran', ran.sort(), ['one', 'three', 'two']);
  t.see('too late', await errorOf(one.changeDelay(10)));
});

check('priorities', async (t) => {
  const queue = queueOf(t);
  const priorities = [3, 1, 2, 0, 1, 2097151, 3, 0];
  const jobs = [];
  for (const [i, priority] of priorities.entries()) jobs.push(await queue.add(`p${priority}-${i}`, {}, { priority }));
  t.see('too large', await errorOf(queue.add('x', {}, { priority: 2097152 })));
  t.see('by priority', await queue.getCountsPerPriority([0, 1, 2, 3, 4]));
  t.see(
    'waiting',
    (await queue.getPrioritized()).map((job) => job.name),
  );
  await jobs[5].changePriority({ priority: 1 });
  await jobs[0].changePriority({ priority: 1, lifo: true });
  await jobs[1].changePriority({ priority: 0 });
  t.see(
    'changed',
    (await queue.getJobs(['wait', 'prioritized'])).map((job) => job.name),
  );
  const ran = [];
  workerOf(t, async (job) => {
    ran.push(job.name);
  });
  await ended(queue, jobs.length);
  t.see('order', ran);
  await t.seeKeys('keys', /stalled-check|marker/);
});

check('attempts with a pause that grows', async (t) => {
  const queue = queueOf(t);
  await queue.add('fixed', {}, { attempts: 3, backoff: 20 });
  await queue.add('growing', {}, { attempts: 4, backoff: { type: 'exponential', delay: 10 } });
  await queue.add('own', {}, { attempts: 3, backoff: { type: 'own' } });
  await queue.add('never well', {}, { attempts: 2 });
  await queue.add('no hope', {}, { attempts: 5 });
  const ended_at = {};
  const waited = {};
  const least = { fixed: () => 20, growing: (n) => 10 * 2 ** (n - 1), own: () => 5, 'never well': () => 0, 'no hope': () => 0 };
  workerOf(
    t,
    async (job) => {
      const n = job.attemptsMade;
      // The pause is counted from a time before the failure is written.
      if (n > 0) (waited[job.name] ??= []).push(job.processedOn >= ended_at[job.name] + least[job.name](n));
      ended_at[job.name] = Date.now();
      if (job.name === 'no hope') throw new UnrecoverableError('it is over');
      if (job.name === 'never well' || n + 1 < job.opts.attempts) throw new Error(`attempt ${n + 1} of ${job.name}`);
      return n + 1;
    },
    { settings: { backoffStrategy: () => 5 } },
  );
  await ended(queue, 5);
  t.see('waited', waited);
  const jobs = await queue.getJobs(['completed', 'failed']);
  const rows = jobs.map((job) => [job.name, job.returnvalue, job.failedReason, job.attemptsMade, job.attemptsStarted]);
  t.see(
    'jobs',
    rows.sort((a, b) => a[0].localeCompare(b[0])),
  );
  t.see('failures kept', Object.fromEntries(jobs.map((job) => [job.name, job.stacktrace.map((trace) => trace.split('\n')[0])])));
});

check('failed jobs are tried again by hand', async (t) => {
  const queue = queueOf(t);
  await queue.addBulk(names(4).map((name) => ({ name, data: {} })));
  let well = false;
  workerOf(t, async (job) => {
    if (!well) throw new Error(`no ${job.name}`);
    return 'well';
  });
  await ended(queue, 4);
  t.same('failed', await queue.getFailedCount(), 4);
  well = true;
  const [job] = await queue.getFailed();
  await job.retry();
  await until(async () => (await job.getState()) === 'completed');
  t.see('retried well', await errorOf(job.retry()));
  await queue.retryJobs();
  await until(async () => (await queue.getCompletedCount()) === 4);
  t.see('completed', (await queue.getCompleted()).map((done) => [done.name, done.attemptsMade, done.failedReason]).sort());
  await queue.retryJobs({ state: 'completed', count: 2 });
  await until(async () => (await queue.getCompletedCount()) === 4);
  t.see('counts', await queue.getJobCounts());
});

check('a limit of jobs a time', async (t) => {
  const queue = queueOf(t);
  await queue.addBulk(names(6).map((name) => ({ name, data: {} })));
  const ran = [];
  const run = async (job) => {
    ran.push(job.name);
  };
  const first = workerOf(t, run, { limiter: { max: 2, duration: 3_600_000 }, concurrency: 3 });
  await until(async () => (await queue.getRateLimitTtl(2)) > 0 && (await queue.getCompletedCount()) === 2);
  t.same('no more', [await queue.getActiveCount(), await queue.getWaitingCount()], [0, 4]);
  // It sleeps as long as the limit lasts.
  await first.close(true);
  t.see('lifted', await queue.removeRateLimitKey());
  workerOf(t, run, { limiter: { max: 2, duration: 20 }, concurrency: 3 });
  await ended(queue, 6);
  t.same('all ran', ran.sort(), names(6));
});

check('a limit by hand', async (t) => {
  const queue = queueOf(t);
  await queue.add('once', {});
  await queue.add('then', {});
  const ran = [];
  const worker = workerOf(
    t,
    async (job) => {
      ran.push([job.name, job.attemptsMade, job.attemptsStarted]);
      if (ran.length === 1) {
        await worker.rateLimit(3_600_000);
        throw Worker.RateLimitError();
      }
    },
    { limiter: { max: 1000, duration: 1 } },
  );
  await until(async () => ran.length === 1 && (await queue.getActiveCount()) === 0);
  t.same('limited', (await queue.getRateLimitTtl()) > 3_000_000, true);
  t.see('counts', await queue.getJobCounts());
  t.see('lifted', await queue.removeRateLimitKey());
  // A worker that has seen the limit sleeps through it.
  await worker.close(true);
  workerOf(t, async (job) => {
    ran.push([job.name, job.attemptsMade, job.attemptsStarted]);
  });
  await ended(queue, 2);
  t.see('order', ran);
  await queue.setGlobalRateLimit(5, 1000);
  t.see('for all', await queue.getGlobalRateLimit());
  t.see('for none', [await queue.removeGlobalRateLimit(), await queue.getGlobalRateLimit()]);
});

check("a killed worker's job is found stalled and runs again", async (t) => {
  const queue = queueOf(t);
  await queue.add('heavy', {}, {});
  const child = fork(__filename, ['hang', String(t.port)]);
  t.closing(child, () => child.kill('SIGKILL'));
  await once(child, 'message');
  t.same('active', await queue.getActiveCount(), 1);
  child.kill('SIGKILL');
  await once(child, 'exit');
  const stalled = [];
  const worker = workerOf(t, async (job) => `saved ${job.name}`, { stalledInterval: 50, autorun: false });
  worker.on('stalled', (id, was) => stalled.push([id, was]));
  worker.run();
  await ended(queue, 1);
  t.see('stalled', stalled);
  t.see(
    'jobs',
    (await queue.getJobs(['completed', 'failed'])).map((job) => [
      job.returnvalue,
      job.attemptsStarted,
      job.attemptsMade,
      job.stalledCounter,
    ]),
  );
});

check('a job that stalls too often fails', async (t) => {
  const queue = queueOf(t);
  await queue.add('heavy', {}, {});
  const child = fork(__filename, ['hang', String(t.port)]);
  t.closing(child, () => child.kill('SIGKILL'));
  await once(child, 'message');
  child.kill('SIGKILL');
  await once(child, 'exit');
  workerOf(t, async () => 'never', { stalledInterval: 50, maxStalledCount: 0 });
  await ended(queue, 1);
  t.see(
    'jobs',
    (await queue.getJobs(['completed', 'failed'])).map((job) => [job.failedReason, job.returnvalue, job.stalledCounter]),
  );
});

check('pausing and going on', async (t) => {
  const queue = queueOf(t);
  await queue.add('before', {});
  await queue.pause();
  t.same('paused', await queue.isPaused(), true);
  await queue.add('during', {});
  await queue.add('important', {}, { priority: 2 });
  t.see('counts', await queue.getJobCounts());
  t.see('meta', await queue.getMeta());
  const ran = [];
  const worker = workerOf(t, async (job) => {
    ran.push(job.name);
  });
  await worker.waitUntilReady();
  t.same('nothing ran', ran, []);
  await queue.resume();
  await ended(queue, 3);
  t.same('order', ran, ['before', 'during', 'important']);
  await worker.pause();
  await queue.add('later', {});
  t.see('a paused worker', [worker.isPaused(), await queue.getWaitingCount()]);
  worker.resume();
  await ended(queue, 4);
  t.see('counts after', await queue.getJobCounts());
});

check('pages of jobs, and removal', async (t) => {
  const queue = queueOf(t);
  await queue.addBulk(names(30).map((name, i) => ({ name, data: {}, opts: i % 3 === 2 ? { delay: 3_600_000 } : {} })));
  t.see(
    'page',
    (await queue.getJobs(['waiting'], 5, 9, true)).map((job) => job.name),
  );
  t.see(
    'page backwards',
    (await queue.getJobs(['waiting'], 0, 3, false)).map((job) => job.name),
  );
  t.see(
    'several kinds',
    (await queue.getJobs(['waiting', 'delayed'], 0, 2, true)).map((job) => job.name),
  );
  t.see('removed', [await queue.remove('1'), await queue.remove('1'), await queue.remove('nothing')]);
  t.see('state', [await queue.getJobState('1'), await queue.getJobState('3')]);
  await queue.drain();
  t.see('drained', await queue.getJobCounts());
  await queue.drain(true);
  t.see('all drained', await queue.getJobCounts());
  await t.seeKeys('keys');
});

check('cleaning and obliterating', async (t) => {
  const queue = queueOf(t);
  await queue.addBulk(names(10).map((name, i) => ({ name, data: { i } })));
  const worker = workerOf(t, async (job) => {
    if (job.data.i % 5 === 4) throw new Error('unlucky');
  });
  await ended(queue, 10);
  await worker.close();
  t.see('some', (await queue.clean(0, 3, 'completed')).length);
  t.see('counts', await queue.getJobCounts());
  t.see('failed ones', (await queue.clean(0, 100, 'failed')).sort());
  t.see('not yet', await queue.clean(3_600_000, 100, 'completed'));
  await queue.addBulk(names(1200, 'more').map((name) => ({ name, data: {} })));
  t.see('many', (await queue.clean(0, 1100, 'wait')).length);
  t.see('events left', (await queue.trimEvents(0)) > 0);
  await queue.obliterate();
  await t.seeKeys('keys');
});

check('a queue at work is obliterated only by force', async (t) => {
  const queue = queueOf(t);
  await queue.add('held', {});
  const worker = workerOf(t, null, { autorun: false });
  await worker.getNextJob('token');
  t.see('refused', await errorOf(queue.obliterate()));
  await queue.obliterate({ force: true });
  await t.seeKeys('keys');
});

check('events in their order', async (t) => {
  const queue = queueOf(t);
  await queue.add('good', { n: 1 });
  await queue.add('bad', { n: 2 }, { attempts: 2 });
  await queue.add('late', { n: 3 }, { delay: 1 });
  const worker = workerOf(t, async (job) => {
    await job.updateProgress({ at: job.data.n });
    if (job.name === 'bad') throw new Error('bad luck');
    return job.data.n * 2;
  });
  await ended(queue, 3);
  await worker.close();
  await (await queue.getJob('1')).remove();
  const seen = {};
  for (const [, fields] of await t.client().xrange(`bull:${NAME}:events`, '-', '+')) {
    const event = Object.fromEntries(fields.map((field, i) => [field, fields[i + 1]]).filter((_, i) => i % 2 === 0));
    // When a late job becomes due, relative to the others, is a matter of pace, and so is when all are taken.
    if (event.event === 'drained') continue;
    delete event.delay;
    (seen[event.jobId] ??= []).push(event);
  }
  t.see('events', seen);
});

check('listening to events', async (t) => {
  const queue = queueOf(t);
  const events = t.closing(new QueueEvents(NAME, { connection: t.connection, lastEventId: '0-0' }));
  await events.waitUntilReady();
  const heard = [];
  for (const kind of ['added', 'active', 'progress', 'completed', 'failed', 'removed', 'paused', 'resumed', 'cleaned']) {
    events.on(kind, (event) => heard.push([kind, event]));
  }
  const job = await queue.add('heard', {});
  const worker = workerOf(t, async (one) => {
    await one.updateProgress(50);
    return 'loud';
  });
  t.same('result', await job.waitUntilFinished(events), 'loud');
  await worker.close();
  await queue.pause();
  await queue.resume();
  await queue.clean(0, 10, 'completed');
  await until(() => heard.some(([kind]) => kind === 'cleaned'));
  t.see('heard', heard);
});

check('metrics', async (t) => {
  const queue = queueOf(t);
  await queue.addBulk(names(12).map((name, i) => ({ name, data: { i } })));
  workerOf(
    t,
    async (job) => {
      if (job.data.i % 4 === 0) throw new Error('odd');
    },
    { metrics: { maxDataPoints: 10 } },
  );
  await ended(queue, 12);
  const completed = await queue.getMetrics('completed');
  const failed = await queue.getMetrics('failed');
  t.same('counts', [completed.meta.count, failed.meta.count], [9, 3]);
  t.see(
    'before any time has passed',
    completed.data.every((n) => n <= 9),
  );
});

check('one at a time over all workers', async (t) => {
  const queue = queueOf(t);
  await queue.setGlobalConcurrency(1);
  t.see('set', [await queue.getGlobalConcurrency(), await queue.isMaxed()]);
  let n_running = 0;
  let most = 0;
  const run = async () => {
    most = Math.max(most, ++n_running);
    await pause(1);
    n_running--;
  };
  for (let i = 0; i < 3; i++) workerOf(t, run, { concurrency: 3 });
  await queue.addBulk(names(25).map((name) => ({ name, data: {} })));
  await ended(queue, 25);
  t.same('at a time', most, 1);
  await queue.removeGlobalConcurrency();
  t.see('unset', await queue.getGlobalConcurrency());
});

check('duplicates are told by a name of their own', async (t) => {
  const queue = queueOf(t);
  const add = async (n, deduplication, options = {}) => (await queue.add('d', { n }, { ...options, deduplication })).id;
  t.see('simple', [await add(1, { id: 'a' }), await add(2, { id: 'a' }), await add(3, { id: 'b' })]);
  t.see('for a time', [await add(4, { id: 'c', ttl: 3_600_000 }), await add(5, { id: 'c', ttl: 3_600_000 })]);
  const replaced = { id: 'e', ttl: 3_600_000, extend: true, replace: true };
  t.see('replaced', [await add(6, replaced, { delay: 3_600_000 }), await add(7, replaced, { delay: 3_600_000 })]);
  t.see('by name', [await queue.getDeduplicationJobId('a'), await queue.getDeduplicationJobId('e')]);
  t.see('forgotten', [
    await queue.removeDeduplicationKey('a'),
    await queue.removeDeduplicationKey('a'),
    await add(8, { id: 'a' }),
  ]);
  const ran = [];
  const worker = workerOf(t, async (job) => {
    ran.push(job.data.n);
  });
  await ended(queue, 4);
  t.see('ran', ran);
  t.see('again', await add(9, { id: 'b' }));
  await ended(queue, 5);
  await worker.close();
  await t.seeKeys('keys', /stalled-check|marker/);
});

check('the latest duplicate of a running job runs after it', async (t) => {
  const queue = queueOf(t);
  const deduplication = { id: 'one', keepLastIfActive: true };
  const add = (n) => queue.add('d', { n }, { deduplication });
  const ran = [];
  let release;
  const released = new Promise((resolve) => {
    release = resolve;
  });
  workerOf(
    t,
    async (job) => {
      ran.push(job.data.n);
      if (job.data.n === 1) await released;
    },
    { concurrency: 4 },
  );
  await add(1);
  await until(() => ran.length === 1);
  for (const n of [2, 3, 4]) await add(n);
  release();
  await until(() => ran.length === 2);
  await ended(queue, 2);
  t.same('ran', ran, [1, 4]);
});

check('what a job may change about itself', async (t) => {
  const queue = queueOf(t, { defaultJobOptions: { keepLogs: 3 } });
  const job = await queue.add('busy', { step: 0 });
  const steps = [];
  workerOf(t, async (one, token) => {
    steps.push(one.data.step);
    for (const line of ['one', 'two', 'three', 'four']) await one.log(`${one.data.step}: ${line}`);
    await one.updateProgress(one.data.step * 10);
    t.see('lock', await one.extendLock(token, 30_000));
    await one.updateData({ step: one.data.step + 1 });
    if (one.data.step === 1) {
      await one.moveToDelayed(Date.now() + 5, token);
      throw new DelayedError();
    }
    if (one.data.step === 2) {
      await one.moveToWait(token);
      throw new WaitingError();
    }
    return one.data.step;
  });
  await ended(queue, 1);
  const done = await queue.getJob(job.id);
  t.same('steps', steps, [0, 1, 2]);
  t.see('job', [done.returnvalue, done.data, done.progress, done.attemptsStarted, done.attemptsMade]);
  t.see('log', await queue.getJobLogs(job.id));
  await done.clearLogs(1);
  t.see('log after', await queue.getJobLogs(job.id));
});

check('finished jobs are kept to a number', async (t) => {
  const queue = queueOf(t);
  await queue.addBulk(
    names(20).map((name, i) => ({ name, data: { i }, opts: { removeOnComplete: 3, removeOnFail: { count: 2 } } })),
  );
  await queue.add('gone', { i: 0 }, { removeOnComplete: true });
  await queue.add('old', { i: 0 }, { removeOnComplete: { age: 3600, count: 100 } });
  const worker = workerOf(t, async (job) => {
    if (job.data.i % 2) throw new Error('odd');
  });
  await until(async () => (await queue.getJobCountByTypes('waiting', 'active')) === 0);
  await worker.close();
  // Of those that ended within the same millisecond, any may be kept.
  t.see('counts', await queue.getJobCounts());
  await t.seeKeys('keys', /stalled-check|marker|:\d+$/);
});

check('jobs by hand, and errors of scripts', async (t) => {
  const queue = queueOf(t);
  await queue.addBulk(names(3).map((name) => ({ name, data: {} })));
  const worker = workerOf(t, null, { autorun: false });
  const first = await worker.getNextJob('token');
  const second = await worker.getNextJob('token');
  t.see('taken', [first.name, second.name, await first.getState()]);
  t.see("another's token", await errorOf(first.moveToCompleted('x', 'other', false)));
  t.see('removal of what runs', await errorOf(first.remove()));
  const next = await first.moveToCompleted('done', 'token', true);
  t.see('next', next && [next[1] === undefined ? null : String(next[1])]);
  t.see('twice', await errorOf(first.moveToCompleted('x', 'token', false)));
  await second.moveToFailed(new Error('sorry'), 'token', false);
  t.see('failed', [await second.getState(), (await queue.getJob(second.id)).failedReason]);
  await queue.remove('nothing');
  const ghost = await queue.add('ghost', {});
  await ghost.remove();
  t.see('of nothing', [
    await errorOf(ghost.updateProgress(1)),
    await errorOf(ghost.updateData({})),
    await errorOf(ghost.promote()),
    await errorOf(ghost.changeDelay(1)),
    await errorOf(ghost.changePriority({ priority: 1 })),
    await errorOf(ghost.retry()),
    await errorOf(ghost.log('x')),
  ]);
  t.see('counts', await queue.getJobCounts());
});

check('many jobs over many workers, each once', async (t) => {
  const n = 400;
  const queue = queueOf(t);
  const n_runs = new Map();
  const run = async (job) => {
    n_runs.set(job.id, (n_runs.get(job.id) ?? 0) + 1);
    return job.data.i;
  };
  for (let i = 0; i < 4; i++) workerOf(t, run, { concurrency: 5 });
  const adders = names(8).map(async (name, part) => {
    for (let i = 0; i < n / 8; i++) await queue.add(name, { i: part * (n / 8) + i }, { priority: i % 3, delay: i % 5 });
  });
  await Promise.all(adders);
  await ended(queue, n);
  t.same('runs', [n_runs.size, Math.max(...n_runs.values())], [n, 1]);
  const sum = (await queue.getCompleted(0, n)).reduce((total, job) => total + job.returnvalue, 0);
  t.same('sum of results', sum, (n * (n - 1)) / 2);
  t.see('counts', await queue.getJobCounts());
});

check('with node-redis in place of ioredis', async (t) => {
  const client = t.closing(createClient({ socket: t.connection }), () => client.destroy());
  await client.connect();
  const queue = t.closing(new Queue(NAME, { connection: client }));
  await queue.add('plain', { n: 1 });
  await queue.add('first', { n: 2 }, { lifo: true });
  await queue.add('again', { n: 3 }, { attempts: 2, backoff: 1 });
  const ran = [];
  t.closing(
    new Worker(
      NAME,
      async (job) => {
        ran.push(job.name);
        if (job.name === 'again' && job.attemptsMade === 0) throw new Error('not yet');
        return job.data.n;
      },
      { connection: client },
    ),
  );
  await ended(queue, 3);
  t.same('order', ran, ['first', 'plain', 'again', 'again']);
  t.see('results', (await queue.getCompleted()).map((job) => [job.name, job.returnvalue]).sort());
  t.see('refused', await errorOf((await queue.getJob('1')).promote()));
});

/** Takes one job and never ends it, in a process that the check kills. */
function hang(port) {
  new Worker(
    NAME,
    () => {
      process.send('taken');
      return new Promise(() => {});
    },
    { connection: { host: '127.0.0.1', port }, lockDuration: 500, skipStalledCheck: true },
  );
}

if (process.argv[2] === 'hang') hang(Number(process.argv[3]));
else main();
