"""More queues of jobs: huey, SAQ, arq, TaskTiger."""

import asyncio
import datetime
import logging

import huey
import saq
import tasktiger
from arq import create_pool
from arq.connections import RedisSettings
from arq.jobs import Job as ArqJob
from arq.worker import Retry as ArqRetry
from arq.worker import Worker as ArqWorker
from arq.worker import func as arq_function
from redis import asyncio as aioredis
from saq.queue.redis import RedisQueue

from check import check, error_of, main, until
from support import tiger_tasks

HOUR_SECONDS = 3600

logging.disable(logging.CRITICAL)


# huey.


class Huey:
    def __init__(self, t, kind=huey.RedisHuey):
        self.t, self.app, self.ran = t, kind("work", url=t.url), []
        self.app.storage.flush_all()

    def start(self, n_workers=2):
        consumer = self.app.create_consumer(workers=n_workers, periodic=False, initial_delay=0.005, max_delay=0.02, scheduler_interval=0.1)
        consumer._set_signal_handlers = lambda: None
        consumer.start()
        self.t.closing(lambda: consumer.stop(graceful=True))


@check("huey: results, failures, chains")
def huey_results(t):
    work = Huey(t)

    @work.app.task()
    def add(a, b):
        return a + b

    @work.app.task()
    def fail(text):
        raise ValueError(text)

    @work.app.task(retries=2)
    def again(well_at):
        work.ran.append(well_at)
        if len(work.ran) < well_at:
            raise RuntimeError("not yet")
        return len(work.ran)

    sent = [add(i, i) for i in range(20)]
    t.see("waiting", [work.app.pending_count(), work.app.scheduled_count(), work.app.result_count()])
    work.start()
    t.same("results", [result.get(blocking=True) for result in sent], [2 * i for i in range(20)])
    t.see("failure", error_of(fail("on purpose").get, blocking=True))
    t.same("well in the end", until(lambda: again_result(again(3))), 3)
    chain = work.app.enqueue(add.s(1, 2).then(add, 3).then(add, 4))
    t.same("chain", list(chain.get(blocking=True)), [3, 6, 10])
    t.see("mapped", list(add.map([(1, 1), (2, 2)]).get(blocking=True)))


def again_result(result):
    """The result of a task that is tried again: failures come first."""
    while True:
        try:
            return result.get(blocking=True)
        except huey.exceptions.TaskException:
            result.reset()


@check("huey: delays, revocation, locks, priorities")
def huey_schedule(t):
    work = Huey(t, huey.PriorityRedisHuey)

    @work.app.task()
    def note(name):
        work.ran.append(name)
        return name

    @work.app.task()
    @work.app.lock_task("single")
    def single(name):
        return name

    past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    low, high = note.s("low"), note.s("high")
    low.priority, high.priority = 1, 10
    for task in (low, high):
        work.app.enqueue(task)
    due = note.schedule(("due",), eta=past.replace(tzinfo=None))
    far = note.schedule(("far",), delay=HOUR_SECONDS)
    revoked = note("revoked")
    revoked.revoke()
    t.see("waiting", [work.app.pending_count(), revoked.is_revoked(), far.is_revoked()])
    lock = work.app.lock_task("single")
    with lock:
        t.see("locked", [work.app.is_locked("single"), error_of(lambda: lock.__enter__())])
        work.start(n_workers=1)
        t.see("while locked", error_of(single("x").get, blocking=True))
    t.same("due", due.get(blocking=True), "due")
    t.same("afterwards", single("y").get(blocking=True), "y")
    t.see("order", [name for name in work.ran if name != "due"])
    t.see("waiting after", [work.app.pending_count(), work.app.scheduled_count(), work.app.is_locked("single")])
    # A script takes what is due, all of it and once.
    work.app.storage.add_to_schedule(b"one", past)
    work.app.storage.add_to_schedule(b"two", past)
    t.see("taken", [sorted(work.app.storage.read_schedule(datetime.datetime.now())), work.app.storage.read_schedule(datetime.datetime.now())])


# SAQ.


class Saq:
    def __init__(self, t):
        self.queue = RedisQueue(aioredis.from_url(t.url), name="work")
        self.attempts = 0

    async def add(self, _context, *, a, b):
        return a + b

    async def fail(self, _context, *, text):
        raise ValueError(text)

    async def again(self, _context, *, well_at):
        self.attempts += 1
        if self.attempts < well_at:
            raise RuntimeError(f"attempt {self.attempts}")
        return self.attempts

    async def hold(self, _context):
        await asyncio.sleep(HOUR_SECONDS)

    async def run(self, use):
        await self.queue.connect()
        functions = [(name, getattr(self, name)) for name in ("add", "fail", "again", "hold")]
        worker = saq.Worker(self.queue, functions, concurrency=4, timers={"schedule": 1, "abort": 1, "sweep": 1, "worker_info": 10})
        # Workers start when the first jobs are there.
        await use(lambda: asyncio.create_task(worker.start()))
        await worker.stop()
        await self.queue.disconnect()


async def refreshed(job):
    # SAQ's own waiting misses an end that comes just before it.
    while not job.completed:
        await asyncio.sleep(0.005)
        await job.refresh()
    return [job.status.value, job.result, job.attempts, job.error and job.error.strip().splitlines()[-1]]


@check("SAQ: jobs, duplicates, retries, schedules, abortion")
def saq_jobs(t):
    work = Saq(t)

    async def use(start):
        queue = work.queue
        # A sweep takes a job that is just being taken for a lost one: this one keeps others away for an hour.
        t.see("swept", await queue.sweep(lock=HOUR_SECONDS))
        first = await queue.enqueue("add", a=1, b=2, key="one")
        t.see("duplicate", await queue.enqueue("add", a=1, b=2, key="one"))
        bad = await queue.enqueue("fail", text="on purpose")
        again = await queue.enqueue("again", well_at=3, retries=5)
        later = await queue.enqueue("add", a=5, b=5, scheduled=1)
        far = await queue.enqueue("add", a=5, b=5, scheduled=4_000_000_000)
        t.see("counts", [await queue.count(kind) for kind in ("queued", "active", "incomplete")])
        worker = start()
        t.see("ends", [await refreshed(job) for job in (first, bad, again, later)])
        held = await queue.enqueue("hold", timeout=0)
        # A job that is aborted while it is just being taken is lost.
        while held.status != saq.Status.ACTIVE:
            await asyncio.sleep(0.005)
            await held.refresh()
        await held.abort("enough")
        t.see("aborted", (await refreshed(held))[0])
        await far.abort("no more")
        await far.refresh()
        t.see("aborted before it ran", far.status.value)
        many = [await queue.enqueue("add", a=i, b=i) for i in range(30)]
        t.same("many", [(await refreshed(job))[1] for job in many], [2 * i for i in range(30)])
        t.see("counts after", [await queue.count(kind) for kind in ("queued", "active", "incomplete")])
        worker.cancel()

    asyncio.run(work.run(use))


@check("SAQ: what a lost worker held is swept up")
def saq_sweep(t):
    work = Saq(t)

    async def use(_start):
        queue = work.queue
        job = await queue.enqueue("add", a=1, b=1, timeout=1, retries=1, key="lost")
        taken = await queue.dequeue(timeout=5)
        # As if its time had been over for long.
        taken.status, taken.started = saq.Status.ACTIVE, 1
        await taken.update()
        t.see("swept", await queue.sweep(lock=60, abort=0.01))
        t.see("at once again", await queue.sweep(lock=60, abort=0.01))
        await job.refresh()
        t.see("state", [job.status.value, job.attempts])
        t.see("counts", [await queue.count(kind) for kind in ("queued", "active", "incomplete")])

    asyncio.run(work.run(use))


# arq.


@check("arq: jobs, retries, deferral, abortion")
def arq_jobs(t):
    tries = {}

    async def add(_context, a, b):
        return a + b

    async def fail(_context, text):
        raise ValueError(text)

    async def again(context, well_at):
        tries[context["job_id"]] = context["job_try"]
        if context["job_try"] < well_at:
            raise ArqRetry()
        return context["job_try"]

    async def run():
        settings = RedisSettings(port=t.port)
        pool = await create_pool(settings)
        sent = [await pool.enqueue_job("add", i, i) for i in range(20)]
        named = await pool.enqueue_job("again", 3, _job_id="named")
        t.see("same name", await pool.enqueue_job("again", 3, _job_id="named"))
        bad = await pool.enqueue_job("fail", "on purpose")
        far = await pool.enqueue_job("add", 1, 1, _defer_by=HOUR_SECONDS, _job_id="far", _queue_name="arq:later")
        t.see("states", [str(await job.status()) for job in (named, far)])
        # It ends when the queue is empty.
        functions = [arq_function(one, name=one.__name__) for one in (add, fail, again)]
        worker = ArqWorker(functions, redis_settings=settings, poll_delay=0.01, handle_signals=False, burst=True)
        await worker.main()
        t.same("results", [await job.result(timeout=50) for job in sent], [2 * i for i in range(20)])
        t.same("well in the end", await named.result(timeout=50), 3)
        t.see("failure", [type(error).__name__ for error in await asyncio.gather(bad.result(timeout=50), return_exceptions=True)])
        t.see("tries", tries)
        t.see("states after", [str(await job.status()) for job in (named, far, ArqJob("unknown", pool))])
        t.see("queued", [job.function for job in await pool.queued_jobs(queue_name="arq:later")])
        await worker.close()
        await pool.aclose()

    asyncio.run(run())
    t.see_keys("keys", but=r"result:(?!named)")


# TaskTiger.


def tiger_of(t, **config):
    client = t.client(decode_responses=True)
    tiger = tasktiger.TaskTiger(client, {"SELECT_TIMEOUT": 0.01, "REQUEUE_EXPIRED_TASKS_INTERVAL": 1, "LOCK_RETRY": 0.05,
                                         "LOGGER_NAME": "tiger", **config}, setup_structlog=True)
    return client, tiger


def run_tiger(tiger):
    tasktiger.Worker(tiger, executor_class=tasktiger.executor.SyncExecutor).run(once=True, force_once=True)


def run_tiger_until(tiger, condition):
    """A run takes one task of each queue."""
    until(lambda: run_tiger(tiger) or condition())


def queue_sizes(tiger):
    return sorted(tiger.get_queue_stats().items())


@check("TaskTiger: tasks, uniqueness, schedules, failures")
def tiger_jobs(t):
    client, tiger = tiger_of(t)
    for i in range(3):
        tiger.delay(tiger_tasks.note, args=(client.connection_pool.connection_kwargs["port"], i))
    for _ in range(3):
        tiger.delay(tiger_tasks.note, args=(t.port, "once"), unique=True)
    tiger.delay(tiger_tasks.fail, args=("on purpose",), queue="broken")
    tiger.delay(tiger_tasks.note, args=(t.port, "far"), when=datetime.timedelta(hours=1), unique=True)
    tiger.delay(tiger_tasks.note, args=(t.port, "past"), when=datetime.datetime(2020, 1, 1), queue="past")
    tiger.delay(tiger_tasks.note, args=(t.port, "nested"), queue="a.b.c")
    t.see("queues", queue_sizes(tiger))
    run_tiger_until(tiger, lambda: client.llen("ran") == 6)
    t.see("ran", sorted(client.lrange("ran", 0, -1)))
    t.see("queues after", queue_sizes(tiger))
    n, failed = tasktiger.Task.tasks_from_queue(tiger, "broken", "error", load_executions=1)
    t.see("failure", [n, failed[0].executions[0]["exception_name"], failed[0].n_executions()])
    failed[0].retry()
    t.see("retried", queue_sizes(tiger))
    run_tiger(tiger)
    task = tasktiger.Task.tasks_from_queue(tiger, "broken", "error")[1][0]
    task.delete()
    t.see("deleted twice", error_of(task.delete))
    _, scheduled = tasktiger.Task.tasks_from_queue(tiger, "default", "scheduled")
    scheduled[0].update_scheduled_time(datetime.datetime(2020, 1, 1))
    run_tiger_until(tiger, lambda: client.llen("ran") == 7)
    t.see("all ran", sorted(client.lrange("ran", 0, -1)))
    t.see_keys("keys", but="lock|queue_periodic")


@check("TaskTiger: retries, locks, batches")
def tiger_retries(t):
    client, tiger = tiger_of(t, BATCH_QUEUES={"batch": 3})
    tiger.delay(tiger_tasks.well_at, args=(t.port, "good", 3), retry_on=[ValueError], retry_method=tasktiger.fixed(0, 5))
    tiger.delay(tiger_tasks.well_at, args=(t.port, "never", 99), retry_on=[ValueError], retry_method=tasktiger.fixed(0, 2))
    for i in range(7):
        tiger.delay(tiger_tasks.batch, args=(t.port, i), queue="batch")
    tiger.delay(tiger_tasks.note, args=(t.port, "locked"), lock=True, queue="locked")
    run_tiger_until(tiger, lambda: client.get("attempts:good") == client.get("attempts:never") == "3" and not client.exists("t:queued"))
    t.see("attempts", [client.get("attempts:good"), client.get("attempts:never")])
    t.see("batches", [client.lrange("batches", 0, -1), client.lrange("ran", 0, -1)])
    t.see("queues", queue_sizes(tiger))


if __name__ == "__main__":
    main()
