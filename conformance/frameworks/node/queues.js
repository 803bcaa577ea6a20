'use strict';
// More queues of jobs: Bull, Bee-Queue, node-resque, RSMQ.

const Bull = require('bull');
const BeeQueue = require('bee-queue');
const Resque = require('node-resque');
const RSMQ = require('rsmq');
const { check, main, until, errorOf } = require('./check');

const HOUR = 3_600_000;

// Bull.

const bullOf = (t, options = {}) => t.closing(new Bull('bull', { redis: { ...t.connection }, ...options }));

const bullEnded = (queue, n) => until(async () => (await queue.getCompletedCount()) + (await queue.getFailedCount()) >= n);

check('Bull: order, priorities, last in first out', async (t) => {
  const queue = bullOf(t);
  await queue.isReady();
  for (const [i, priority] of [0, 3, 1, 2, 0, 1].entries()) await queue.add({ i }, priority ? { priority } : {});
  await queue.add({ i: 'last' }, { lifo: true });
  t.see('counts', await queue.getJobCounts());
  const ran = [];
  queue.process(async (job) => {
    ran.push(job.data.i);
    await job.progress(50);
    return { i: job.data.i };
  });
  await bullEnded(queue, 7);
  t.see('order', ran);
  t.see('results', (await queue.getCompleted()).map((job) => [job.id, job.returnvalue, job._progress]).sort());
  await t.seeKeys('keys', /stalled-check/);
});

check('Bull: delays and retries', async (t) => {
  const queue = bullOf(t);
  await queue.isReady();
  const timestamp = Date.now();
  await queue.add('late', { n: 2 }, { delay: 60, timestamp });
  await queue.add('sooner', { n: 1 }, { delay: 30, timestamp });
  const far = await queue.add('far', {}, { delay: HOUR });
  await queue.add('twice', {}, { attempts: 3, backoff: { type: 'fixed', delay: 5 } });
  await queue.add('never', {}, { attempts: 2 });
  const ran = [];
  queue.process('*', async (job) => {
    ran.push(job.name);
    if (job.name === 'never' || (job.name === 'twice' && job.attemptsMade < 1)) throw new Error(`no ${job.name}`);
    return job.name;
  });
  await bullEnded(queue, 4);
  t.same(
    'order of the delayed',
    ran.filter((name) => ['late', 'sooner'].includes(name)),
    ['sooner', 'late'],
  );
  t.see('ran', [...ran].sort());
  t.see(
    'failed',
    (await queue.getFailed()).map((job) => [job.name, job.failedReason, job.attemptsMade]),
  );
  t.see('far', await far.getState());
  await far.promote();
  await bullEnded(queue, 5);
  const [failed] = await queue.getFailed();
  await failed.retry();
  await until(async () => ran.filter((name) => name === 'never').length === 3);
  await bullEnded(queue, 5);
  t.see('counts', await queue.getJobCounts());
});

check('Bull: pauses, limits, repetition, removal', async (t) => {
  const queue = bullOf(t, { limiter: { max: 2, duration: 50 } });
  await queue.isReady();
  await queue.pause();
  await Promise.all([1, 2, 3, 4].map((i) => queue.add({ i })));
  t.see('paused', [await queue.isPaused(), await queue.getJobCounts()]);
  const ran = [];
  queue.process(async (job) => {
    ran.push(job.data.i);
  });
  await queue.resume();
  await bullEnded(queue, 4);
  t.same('all ran', ran.sort(), [1, 2, 3, 4]);
  await queue.add({ i: 'again' }, { repeat: { every: 10, limit: 3 } });
  await bullEnded(queue, 7);
  t.see('repeated', ran.filter((i) => i === 'again').length);
  await queue.add({}, { repeat: { cron: '0 0 1 1 *', tz: 'UTC' }, jobId: 'yearly' });
  t.see('repeatable', (await queue.getRepeatableJobs()).map(({ id, cron, every, tz }) => [id, cron, every, tz]).sort());
  t.see('cleaned', (await queue.clean(0, 'completed')).length);
  await queue.removeJobs('repeat:*');
  t.see('counts', await queue.getJobCounts());
  await queue.obliterate({ force: true });
  await t.seeKeys('keys', /stalled-check|limiter/);
});

check('Bull: many jobs over many workers, each once', async (t) => {
  const n = 200;
  const runs = new Map();
  const queues = Array.from({ length: 3 }, () => bullOf(t));
  for (const queue of queues)
    queue.process(4, async (job) => {
      runs.set(job.id, (runs.get(job.id) ?? 0) + 1);
    });
  await queues[0].addBulk(Array.from({ length: n }, (_, i) => ({ name: '__default__', data: { i } })));
  await bullEnded(queues[0], n);
  t.same('runs', [runs.size, Math.max(...runs.values())], [n, 1]);
  t.see('counts', await queues[0].getJobCounts());
});

// Bee-Queue.

function beeOf(t, options = {}) {
  const queue = new BeeQueue('bee', { redis: { ...t.connection }, activateDelayedJobs: true, ...options });
  return t.closing(queue, () => queue.close(0));
}

check('Bee-Queue: results, failures, progress', async (t) => {
  const queue = beeOf(t);
  await queue.ready();
  const progress = [];
  const jobs = [];
  for (const i of [1, 2, 3, 4, 5]) {
    const job = queue.createJob({ i });
    job.on('progress', (value) => progress.push(value));
    jobs.push(await job.save());
  }
  t.see('health', await queue.checkHealth());
  const ended = jobs.map(
    (job) =>
      new Promise((resolve) => {
        job.on('succeeded', (result) => resolve([job.id, 'succeeded', result]));
        job.on('failed', (error) => resolve([job.id, 'failed', error.message]));
      }),
  );
  const ran = [];
  queue.process(async (job) => {
    ran.push(job.data.i);
    job.reportProgress({ at: job.data.i });
    if (job.data.i === 3) throw new Error('three is no good');
    return job.data.i * 2;
  });
  t.see('ends', await Promise.all(ended));
  await until(() => progress.length === 5);
  t.same('order', ran, [1, 2, 3, 4, 5]);
  t.see('health after', await queue.checkHealth());
  t.see(
    'failed',
    (await queue.getJobs('failed', { size: 10 })).map((job) => [job.id, job.status]),
  );
  await t.seeKeys('keys', /stallBlock/);
});

check('Bee-Queue: delays, retries, own identifiers, removal', async (t) => {
  const queue = beeOf(t, { nearTermWindow: 100, delayedDebounce: 10 });
  await queue.ready();
  const start = Date.now();
  const due = {};
  const ran = [];
  queue.process(async (job) => {
    ran.push(job.id);
    if (job.id === 'late') due.late = Date.now() >= start + 40;
    if (job.id === 'tries' && ran.filter((id) => id === 'tries').length < 3) throw new Error('again');
  });
  await queue
    .createJob({})
    .setId('late')
    .delayUntil(start + 40)
    .save();
  await queue.createJob({}).setId('tries').retries(3).backoff('fixed', 5).save();
  await queue
    .createJob({})
    .setId('far')
    .delayUntil(start + HOUR)
    .save();
  t.see('taken name', (await queue.createJob({}).setId('far').save()).id);
  await until(async () => (await queue.checkHealth()).succeeded >= 2);
  t.see('ran', [...ran].sort());
  t.see('due', due);
  await queue.removeJob('far');
  t.see('health', await queue.checkHealth());
  await queue.destroy();
  await t.seeKeys('keys', /stallBlock/);
});

check('Bee-Queue: what stalls is run by another', async (t) => {
  const stuck = beeOf(t, { stallInterval: 200 });
  await stuck.ready();
  // A process that hangs does not tell that it is alive.
  stuck._preventStall = () => Promise.resolve();
  let taken;
  const holding = new Promise((resolve) => {
    taken = resolve;
  });
  let release;
  stuck.process(
    () =>
      new Promise((resolve) => {
        release = resolve;
        taken();
      }),
  );
  await stuck.createJob({}).setId('held').save();
  await holding;
  const other = beeOf(t, { stallInterval: 200 });
  t.closing(null, () => release());
  await other.ready();
  const ran = [];
  other.process(async (job) => {
    ran.push(job.id);
  });
  let n_stalled = 0;
  await until(async () => {
    n_stalled += await other.checkStalledJobs();
    return ran.length > 0;
  });
  t.same('ran', [[...new Set(ran)], n_stalled >= 1], [['held'], true]);
});

// node-resque.

check(
  'node-resque: workers, locks, failures',
  async (t) => {
    const connection = { pkg: 'ioredis', ...t.connection, database: 0, namespace: 'resque' };
    const ran = [];
    const jobs = {
      add: {
        perform: async (a, b) => {
          ran.push(a + b);
          return a + b;
        },
      },
      single: {
        plugins: ['QueueLock'],
        perform: async (n) => {
          ran.push(`single ${n}`);
        },
      },
      broken: {
        plugins: ['Retry'],
        pluginOptions: { Retry: { retryLimit: 2, retryDelay: 0 } },
        perform: async () => {
          ran.push('broken');
          throw new Error('broken');
        },
      },
    };
    const queue = t.closing(new Resque.Queue({ connection }, jobs), () => queue.end());
    await queue.connect();
    t.see('added', [
      await queue.enqueue('one', 'add', [1, 2]),
      await queue.enqueue('one', 'single', [7]),
      await queue.enqueue('one', 'single', [7]),
    ]);
    await queue.enqueue('two', 'add', [3, 4]);
    await queue.enqueue('two', 'broken', []);
    await queue.enqueueIn(HOUR, 'one', 'add', [5, 6]);
    await queue.enqueueAt(1000, 'one', 'add', [8, 9]);
    t.see('lengths', [await queue.length('one'), await queue.length('two'), (await queue.queues()).sort()]);
    t.see('delayed', [await queue.scheduledAt('one', 'add', [8, 9]), (await queue.delDelayed('one', 'add', [5, 6])).length]);
    const scheduler = t.closing(new Resque.Scheduler({ connection, timeout: 10 }, jobs), () => scheduler.end());
    await scheduler.connect();
    await scheduler.start();
    const worker = t.closing(new Resque.Worker({ connection, queues: ['one', 'two'], timeout: 5 }, jobs), () => worker.end());
    await worker.connect();
    const failures = [];
    worker.on('failure', (name, job, error) => failures.push([name, job.class, String(error)]));
    await worker.start();
    await until(async () => (await queue.failedCount()) === 1 && ran.includes(17));
    t.see('ran', ran.map(String).sort());
    t.see('failures', failures);
    const [failed] = await queue.failed(0, 1);
    t.see('failed', [failed.queue, failed.payload.class, failed.exception, failed.error]);
    const { processed, failed: n_failed } = await queue.stats();
    t.see('statistics', [processed, n_failed]);
    t.see('locks', await queue.locks());
  },
  90,
);

// RSMQ.

check('RSMQ: messages that hide and come back', async (t) => {
  const queue = new RSMQ({ ...t.connection, ns: 'rsmq' });
  t.closing(queue, () => queue.quit(() => {}));
  await until(() => queue.popMessage_sha1 && queue.receiveMessage_sha1 && queue.changeMessageVisibility_sha1);
  const qname = 'q';
  t.see('create', [await queue.createQueueAsync({ qname, vt: 3600 }), await errorOf(queue.createQueueAsync({ qname }))]);
  const ids = [];
  for (const message of ['one', 'two', 'three é']) ids.push(await queue.sendMessageAsync({ qname, message }));
  const read = ({ id, message, rc }) => [ids.indexOf(id), message ?? null, rc ?? null];
  const first = await queue.receiveMessageAsync({ qname });
  const bodies = [first, await queue.receiveMessageAsync({ qname })].map(({ message, rc }) => [message, rc]);
  // Identifiers begin with the microsecond, by which messages are ordered, but rounded.
  t.see('received', bodies);
  t.see('visible again', await queue.changeMessageVisibilityAsync({ qname, id: first.id, vt: 0 }));
  t.see('received again', read(await queue.receiveMessageAsync({ qname, vt: 0 })));
  t.see('popped', read(await queue.popMessageAsync({ qname })));
  t.see('deleted', [
    await queue.deleteMessageAsync({ qname, id: ids[1] }),
    await queue.deleteMessageAsync({ qname, id: ids[1] }),
  ]);
  const { totalrecv, totalsent, msgs, hiddenmsgs } = await queue.getQueueAttributesAsync({ qname });
  t.see('attributes', [totalrecv, totalsent, msgs, hiddenmsgs]);
  t.see('unknown', await errorOf(queue.receiveMessageAsync({ qname: 'none' })));
  await queue.deleteQueueAsync({ qname });
  t.see('queues', await queue.listQueuesAsync());
});

main();
