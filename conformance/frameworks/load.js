'use strict';
// Measures how many jobs of BullMQ each of several servers carries, per second and per second of the server's
// processor time.
//
//     node load.js PORT:PID PORT:PID [--jobs 5000] [--workers 4] [--concurrency 10] [--rounds 5] [--goal 1.2]
//
// `conformance/frameworks/run --load` starts the servers, the one to test first, and passes the rest on. The
// servers take turns, in an order that turns around each round. A round adds all jobs in bulk, and then works
// them off; both count.

const fs = require('node:fs');
const { execFileSync } = require('node:child_process');
const { parseArgs } = require('node:util');
const { Queue, Worker } = require('bullmq');
const Redis = require('ioredis');

const BULK = 500;
const TICKS_A_SECOND = Number(execFileSync('getconf', ['CLK_TCK']));

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    jobs: { type: 'string', default: '5000' },
    workers: { type: 'string', default: '4' },
    concurrency: { type: 'string', default: '10' },
    rounds: { type: 'string', default: '5' },
    goal: { type: 'string' },
  },
});

/** Seconds that a process has run, in itself and in the kernel. */
function processorSeconds(pid) {
  const stat = fs.readFileSync(`/proc/${pid}/stat`, 'utf8');
  // The name before the brackets' end may hold spaces; what follows begins with the third field.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) / TICKS_A_SECOND;
}

async function carryOut({ connection, nJobs, nWorkers, concurrency }) {
  const queue = new Queue('load', { connection });
  let nDone = 0;
  let finish;
  const finished = new Promise((resolve) => {
    finish = resolve;
  });
  const run = async () => {
    if (++nDone === nJobs) finish();
  };
  for (let i = 0; i < nJobs; i += BULK) {
    const jobs = Array.from({ length: Math.min(BULK, nJobs - i) }, (_, k) => ({
      name: 'job',
      data: { number: i + k, text: 'x'.repeat(100) },
      opts: { removeOnComplete: 1000 },
    }));
    await queue.addBulk(jobs);
  }
  const workers = Array.from({ length: nWorkers }, () => new Worker('load', run, { connection, concurrency }));
  await finished;
  await Promise.all(workers.map((worker) => worker.close()));
  await queue.close();
}

/** Jobs a second of the clock, and of the server's processor time. */
async function measure({ port, pid }, load) {
  const connection = { host: '127.0.0.1', port };
  const redis = new Redis(connection);
  await redis.flushall();
  const start = { wall: performance.now(), processor: processorSeconds(pid) };
  await carryOut({ ...load, connection });
  const wall = load.nJobs / ((performance.now() - start.wall) / 1000);
  const processor = load.nJobs / (processorSeconds(pid) - start.processor);
  await redis.quit();
  return { wall, processor };
}

const median = (numbers) => {
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

const row = (name, { wall, processor }) =>
  `${name.padEnd(20)} ${Math.round(wall).toString().padStart(8)} ${Math.round(processor).toString().padStart(12)}`;

async function main() {
  const [tested, reference] = positionals
    .map((word) => word.split(':').map(Number))
    .map(([port, pid]) => ({ port, pid, rounds: [] }));
  tested.name = 'tested';
  reference.name = 'redis-server';
  const load = { nJobs: Number(values.jobs), nWorkers: Number(values.workers), concurrency: Number(values.concurrency) };
  console.log(`${load.nJobs} jobs, ${load.nWorkers} workers with ${load.concurrency} jobs at a time each`);
  console.log(`${''.padEnd(20)} ${'jobs/s'.padStart(8)} ${'jobs/CPU s'.padStart(12)}`);
  // What is compiled and loaded on first use is no part of it.
  for (const server of [tested, reference]) await measure(server, { ...load, nJobs: Math.min(load.nJobs, BULK) });
  for (let round = 0; round < Number(values.rounds); round++) {
    for (const server of round % 2 ? [reference, tested] : [tested, reference]) {
      const result = await measure(server, load);
      server.rounds.push(result);
      console.log(row(`${round + 1}: ${server.name}`, result));
    }
  }
  const middle = (server, key) => median(server.rounds.map((result) => result[key]));
  for (const server of [tested, reference])
    console.log(row(`median: ${server.name}`, { wall: middle(server, 'wall'), processor: middle(server, 'processor') }));
  const ratios = Object.fromEntries(
    ['wall', 'processor'].map((key) => [key, median(tested.rounds.map((result, i) => result[key] / reference.rounds[i][key]))]),
  );
  console.log(
    `median of the rounds' ratios: ${ratios.wall.toFixed(2)} of jobs a second, ${ratios.processor.toFixed(2)} of jobs a second of processor time`,
  );
  process.exit(values.goal && ratios.processor < Number(values.goal) ? 1 : 0);
}

main();
