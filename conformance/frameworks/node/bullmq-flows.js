'use strict';
// BullMQ: trees of jobs, where the end of a child changes its parent in another queue, and jobs that
// schedulers make.

const { Queue, Worker, FlowProducer, WaitingChildrenError, UnrecoverableError } = require('bullmq');
const { check, main, until, errorOf, plain } = require('./check');

/** Queues, a producer of trees, and workers, all closed at the check's end. */
class Flows {
  constructor(t) {
    this.t = t;
    this.producer = t.closing(new FlowProducer({ connection: t.connection }));
    this.queues = {};
  }

  queue(name) {
    this.queues[name] ??= this.t.closing(new Queue(name, { connection: this.t.connection }));
    return this.queues[name];
  }

  work(name, processor, options = {}) {
    const worker = this.t.closing(new Worker(name, processor, { connection: this.t.connection, ...options }));
    worker.on('error', (error) => this.t.see('error of a worker', error.message));
    return worker;
  }

  ended(name, n = 1) {
    const queue = this.queue(name);
    return until(async () => (await queue.getJobCountByTypes('completed', 'failed')) >= n);
  }
}

/** An object with values under identifiers made up for this run, as a sorted list of the values. */
const values = (object) =>
  Object.values(object)
    .map((value) => JSON.stringify(value))
    .sort();

const child = (name, n, opts = {}) => ({ name, queueName: 'children', data: { n }, opts });

check('a parent waits for its children', async (t) => {
  const flows = new Flows(t);
  const tree = await flows.producer.add({
    name: 'sum',
    queueName: 'parents',
    data: { base: 100 },
    children: [child('a', 1), child('b', 2), child('c', 3, { priority: 1 }), child('d', 4, { delay: 10 })],
  });
  t.see('states', [await tree.job.getState(), tree.children.length]);
  t.see('counts of dependencies', await tree.job.getDependenciesCount());
  const order = [];
  flows.work('parents', async (job) => {
    order.push(job.name);
    const found = await job.getChildrenValues();
    return job.data.base + Object.values(found).reduce((total, n) => total + n, 0);
  });
  t.same('refused', (await errorOf(tree.job.promote())) !== null, true);
  flows.work('children', async (job) => {
    order.push(job.name);
    return job.data.n;
  });
  await flows.ended('parents');
  const [parent] = await flows.queue('parents').getCompleted();
  t.same('sum', parent.returnvalue, 110);
  t.same('last', order.at(-1), 'sum');
  t.see('values', values(await parent.getChildrenValues()));
  t.see('dependencies', values((await parent.getDependencies()).processed));
  t.see('counts', [await flows.queue('parents').getJobCounts(), await flows.queue('children').getJobCounts()]);
  await t.seeKeys('keys', /stalled-check|marker|limiter/);
});

check('a tree of three levels', async (t) => {
  const flows = new Flows(t);
  const level = (depth) => ({
    name: `level-${depth}`,
    queueName: `level-${depth}`,
    data: {},
    children: depth === 2 ? [] : [level(depth + 1), level(depth + 1), level(depth + 1)],
  });
  const tree = await flows.producer.add(level(0));
  const shape = (node) => [node.job.name, node.children?.map(shape).sort() ?? []];
  t.see('tree', shape(await flows.producer.getFlow({ id: tree.job.id, queueName: 'level-0' })));
  t.see('part of it', shape(await flows.producer.getFlow({ id: tree.job.id, queueName: 'level-0', depth: 2 })));
  for (let depth = 0; depth < 3; depth++) {
    flows.work(
      `level-${depth}`,
      async (job) => {
        const below = Object.values(await job.getChildrenValues());
        return 1 + below.reduce((total, n) => total + n, 0);
      },
      { concurrency: 3 },
    );
  }
  await flows.ended('level-0');
  t.same('nodes', (await flows.queue('level-0').getCompleted())[0].returnvalue, 13);
});

const failing = (t, opts) => {
  const flows = new Flows(t);
  return flows.producer
    .add({
      name: 'parent',
      queueName: 'parents',
      data: {},
      children: [child('bad', 1, opts), child('good', 2)],
    })
    .then((tree) => {
      flows.work('children', async (job) => {
        if (job.name === 'bad') throw new UnrecoverableError('spoiled');
        return job.data.n;
      });
      return { flows, tree };
    });
};

const seeParent = async (t, job) => {
  t.see('state', [await job.getState(), job.failedReason && plain(job.failedReason)]);
  t.see('counts of dependencies', await job.getDependenciesCount());
  t.see('values', values(await job.getChildrenValues()));
  t.see('failures passed over', values(await job.getIgnoredChildrenFailures()));
};

check('a child that fails fails its parent', async (t) => {
  const { flows, tree } = await failing(t, { failParentOnFailure: true });
  flows.work('parents', async () => 'never');
  await flows.ended('parents');
  await flows.ended('children', 2);
  await seeParent(t, await flows.queue('parents').getJob(tree.job.id));
});

check("a child's failure is passed over", async (t) => {
  const { flows, tree } = await failing(t, { ignoreDependencyOnFailure: true });
  flows.work('parents', async (job) => values(await job.getIgnoredChildrenFailures()));
  await flows.ended('parents');
  const parent = await flows.queue('parents').getJob(tree.job.id);
  t.see('result', parent.returnvalue);
  await seeParent(t, parent);
});

check('a child that fails is forgotten', async (t) => {
  const { flows, tree } = await failing(t, { removeDependencyOnFailure: true });
  flows.work('parents', async () => 'fine');
  await flows.ended('parents');
  await seeParent(t, await flows.queue('parents').getJob(tree.job.id));
});

check('a parent goes on when a child fails', async (t) => {
  const { flows, tree } = await failing(t, { continueParentOnFailure: true });
  const failures = [];
  flows.work('parents', async (job) => {
    failures.push(Object.values(await job.getFailedChildrenValues()));
    await job.removeUnprocessedChildren();
    return 'went on';
  });
  await flows.ended('parents');
  t.see('failures', failures);
  t.same('state', await tree.job.getState(), 'completed');
});

check('a parent without hope waits on', async (t) => {
  const { flows, tree } = await failing(t, {});
  await flows.ended('children', 2);
  await seeParent(t, await flows.queue('parents').getJob(tree.job.id));
  t.same('state', await tree.job.getState(), 'waiting-children');
  const bad = tree.children.find(({ job }) => job.name === 'bad').job;
  t.see('freed of the child', [await bad.removeChildDependency(), await errorOf(bad.removeChildDependency())]);
  await until(async () => (await tree.job.getState()) === 'waiting');
});

check('a running job adds children and waits for them', async (t) => {
  const flows = new Flows(t);
  const steps = [];
  flows.work('parents', async (job, token) => {
    steps.push(job.data.step ?? 'first');
    if (!job.data.step) {
      for (const n of [1, 2, 3]) {
        await flows.queue('children').add(`c${n}`, { n }, { parent: { id: job.id, queue: job.queueQualifiedName } });
      }
      await job.updateData({ step: 'second' });
      if (await job.moveToWaitingChildren(token)) throw new WaitingChildrenError();
    }
    return values(await job.getChildrenValues());
  });
  await flows.queue('parents').add('parent', {});
  await until(async () => (await flows.queue('parents').getWaitingChildrenCount()) === 1);
  t.see('waiting', await flows.queue('parents').getJobCounts());
  flows.work('children', async (job) => job.data.n * 10);
  await flows.ended('parents');
  t.same('steps', steps, ['first', 'second']);
  t.see('result', (await flows.queue('parents').getCompleted())[0].returnvalue);
  const orphan = flows.queue('children').add('orphan', {}, { parent: { id: 'nobody', queue: 'bull:parents' } });
  t.see('of a parent that is not there', await errorOf(orphan));
});

check('trees are removed whole', async (t) => {
  const flows = new Flows(t);
  const tree = await flows.producer.add({
    name: 'parent',
    queueName: 'parents',
    data: {},
    children: [child('a', 1), { ...child('b', 2), children: [child('c', 3)] }],
  });
  t.see('counts', [await flows.queue('parents').getJobCounts(), await flows.queue('children').getJobCounts()]);
  await tree.children[0].job.remove();
  t.see('one child less', await tree.job.getDependenciesCount());
  await tree.job.remove();
  t.see('counts after', [await flows.queue('parents').getJobCounts(), await flows.queue('children').getJobCounts()]);
  await t.seeKeys('keys');
});

check('many trees over many workers', async (t) => {
  const flows = new Flows(t);
  const n = 30;
  const trees = Array.from({ length: n }, (_, i) => ({
    name: `tree-${i}`,
    queueName: 'parents',
    data: { i },
    children: [1, 2, 3, 4, 5].map((k) => child(`leaf-${i}-${k}`, i * k, k === 5 ? { delay: 1 } : { priority: k % 2 })),
  }));
  await flows.producer.addBulk(trees);
  for (let i = 0; i < 3; i++) {
    flows.work('children', async (job) => job.data.n, { concurrency: 4 });
    flows.work(
      'parents',
      async (job) => {
        const found = Object.values(await job.getChildrenValues());
        return found.length * 1_000_000 + found.reduce((total, k) => total + k, 0);
      },
      { concurrency: 2 },
    );
  }
  await flows.ended('parents', n);
  const results = (await flows.queue('parents').getCompleted(0, n)).map((job) => job.returnvalue).sort((a, b) => a - b);
  t.same(
    'results',
    results,
    trees.map((_, i) => 5_000_000 + i * 15),
  );
  t.see('counts', [await flows.queue('parents').getJobCounts(), await flows.queue('children').getJobCounts()]);
});

// Schedulers.

const plainScheduler = ({ key, name, pattern, every, limit, iterationCount, template, tz }) => ({
  key,
  name,
  pattern,
  every,
  limit,
  iterationCount,
  template,
  tz,
});

check('a scheduler makes jobs up to its limit', async (t) => {
  const flows = new Flows(t);
  const queue = flows.queue('ticks');
  const first = await queue.upsertJobScheduler(
    'tick',
    { every: 20, limit: 4 },
    { name: 'tick', data: { of: 'clock' }, opts: { removeOnFail: 5 } },
  );
  t.same('made by', first.repeatJobKey, 'tick');
  const ran = [];
  flows.work('ticks', async (job) => {
    ran.push([job.name, job.data, job.repeatJobKey, job.opts.repeat.count]);
  });
  await flows.ended('ticks', 4);
  t.see('ran', ran);
  t.see('counts', await queue.getJobCounts());
  t.see('left', [await queue.getJobSchedulersCount(), plainScheduler(await queue.getJobScheduler('tick'))]);
});

check('schedulers by calendar, changed and removed', async (t) => {
  const queue = new Flows(t).queue('calendar');
  await queue.upsertJobScheduler('new year', { pattern: '0 0 1 1 *', tz: 'UTC' }, { name: 'greet', data: { a: 1 } });
  await queue.upsertJobScheduler('daily', { pattern: '30 4 * * *' }, { name: 'count' });
  await queue.upsertJobScheduler('rarely', { every: 86_400_000, startDate: Date.now() + 86_400_000 });
  t.see(
    'all',
    (await queue.getJobSchedulers(0, -1, true)).map(plainScheduler).sort((a, b) => a.key.localeCompare(b.key)),
  );
  t.see('counts', await queue.getJobCounts('waiting', 'delayed'));
  await queue.upsertJobScheduler('new year', { pattern: '0 0 1 6 *', limit: 3 }, { name: 'greet', data: { a: 2 } });
  t.see('changed', plainScheduler(await queue.getJobScheduler('new year')));
  t.see('made', (await queue.getDelayed()).map((job) => [job.name, job.data]).sort());
  t.see('removed', [await queue.removeJobScheduler('daily'), await queue.removeJobScheduler('daily')]);
  t.see('counts after', [await queue.getJobSchedulersCount(), await queue.getJobCounts('waiting', 'delayed')]);
  const [job] = await queue.getDelayed();
  t.see('its job stays', await errorOf(job.remove()));
  t.see('what is wrong', [
    await errorOf(queue.upsertJobScheduler('x', { pattern: 'never' })),
    await errorOf(queue.upsertJobScheduler('x', {})),
  ]);
});

main();
