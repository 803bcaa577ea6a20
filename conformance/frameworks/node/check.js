'use strict';
// What every program in this folder is made of: named checks, run one after the other against one server.
//
// A check throws when something is plainly wrong, and notes with `t.see` what it observed. The runner
// compares these notes with those of the same check against redis-server. They hold only what does not depend
// on the pace of the machine.
//
// The runner passes the port as the first argument, and then the names of checks to leave out. The variable
// CHECKS_WITH holds a word that names must contain. Events go to descriptor 3.

const fs = require('node:fs');
const { isDeepStrictEqual } = require('node:util');
const Redis = require('ioredis');

const EVENTS_DESCRIPTOR = 3;
const HOST = '127.0.0.1';
const LIMIT_SECONDS = 60;
const POLL_MILLISECONDS = 5;

const checks = [];

/** Adds a check. `run` is given the object below. */
function check(name, run, limitSeconds = LIMIT_SECONDS) {
  checks.push({ name, run, limitSeconds });
}

const tell = (event) => fs.writeSync(EVENTS_DESCRIPTOR, `${JSON.stringify(event)}\n`);

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Waits until the condition holds. The check's limit of time bounds it. */
async function until(condition) {
  while (!(await condition())) await pause(POLL_MILLISECONDS);
}

/** The first words of what a promise is rejected with, or null. */
async function errorOf(promise) {
  try {
    await promise;
    return null;
  } catch (error) {
    return plain(`${error.name}: ${error.message}`);
  }
}

/** A text without what differs from run to run: identifiers, times, ports. */
function plain(text) {
  return String(text)
    .replace(/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g, '<uuid>')
    .replace(/\b\d{13}\b/g, '<milliseconds>')
    .replace(/127\.0\.0\.1:\d+/g, '<server>');
}

const SIZES = { string: 'strlen', list: 'llen', set: 'scard', zset: 'zcard', hash: 'hlen', stream: 'xlen' };

/** What a check is given. */
class Check {
  constructor(port) {
    this.port = port;
    this.connection = { host: HOST, port };
    this.notes = [];
    this.closers = [];
  }

  /** Notes what was observed, for the comparison with redis-server. */
  see(label, value) {
    this.notes.push([label, value === undefined ? null : value]);
  }

  /** Notes a value that is known beforehand as well. */
  same(label, value, expected) {
    this.see(label, value);
    if (!isDeepStrictEqual(value, expected)) {
      throw new Error(`${label}: ${JSON.stringify(value)} in place of ${JSON.stringify(expected)}`);
    }
  }

  /** Has something closed at the check's end, the last one first. */
  closing(what, close = () => what.close()) {
    this.closers.push(() => close(what));
    return what;
  }

  /** A connection of ioredis, for what a check asks beside the program. */
  client(options = {}) {
    return this.closing(new Redis({ ...this.connection, ...options }), (redis) => redis.disconnect());
  }

  /** Notes every key with its type, its size, and whether it expires; but for those whose name matches `except`. */
  async seeKeys(label, except = /^$/) {
    const redis = this.client();
    const rows = [];
    for (const key of await redis.keys('*')) {
      if (except.test(key)) continue;
      const type = await redis.type(key);
      const size = type === 'none' ? 0 : await redis[SIZES[type]](key);
      rows.push([plain(key), type, type === 'string' ? 0 : size, (await redis.pttl(key)) >= 0]);
    }
    this.see(label, rows.sort());
  }

  async close() {
    for (const close of this.closers.reverse()) await close();
  }
}

async function runOne({ name, run, limitSeconds }, port) {
  tell({ begin: name, limit: limitSeconds });
  const t = new Check(port);
  let error = null;
  try {
    const redis = new Redis({ host: HOST, port });
    // Each for itself: a server that has no functions may well have scripts.
    const [[flushed]] = await redis.pipeline().flushall().script('FLUSH').function('FLUSH').exec();
    if (flushed) throw flushed;
    await redis.quit();
    await run(t);
    await t.close();
  } catch (thrown) {
    error = thrown.stack || String(thrown);
  }
  tell({ end: name, notes: t.notes, error });
  // What a failed check leaves open could disturb the next, so that the runner starts the program anew.
  if (error) process.exit(1);
}

/** Runs the checks that the arguments do not leave out. */
async function main() {
  const [port, ...leftOut] = process.argv.slice(2);
  const wanted = checks.filter(({ name }) => name.includes(process.env.CHECKS_WITH ?? ''));
  tell({ checks: wanted.map(({ name }) => name) });
  for (const one of wanted) {
    if (!leftOut.includes(one.name)) await runOne(one, Number(port));
  }
  process.exit(0);
}

module.exports = { check, main, until, pause, errorOf, plain };
