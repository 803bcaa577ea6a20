"""RQ: jobs that depend on others, fail, repeat and wait, with workers in this process."""

import datetime
import threading

from rq import Callback, Queue, Retry, SimpleWorker
from rq.command import send_shutdown_command
from rq.job import Dependency, Job
from rq.rate_limit import RateLimit
from rq.registry import FailedJobRegistry
from rq.scheduler import RQScheduler

from check import check, error_of, main
from support import rq_functions as functions

ENOUGH = datetime.timedelta(days=1)


class Work:
    def __init__(self, t):
        functions.RAN.clear()
        functions.ATTEMPTS.clear()
        self.client = t.client()
        self.queue = Queue("work", connection=self.client)

    def run(self, *queues):
        SimpleWorker(list(queues) or [self.queue], connection=self.client).work(burst=True, logging_level="ERROR")

    def states(self, *jobs):
        return [job.get_status().value for job in jobs]


def counts(queue):
    return [queue.count, queue.finished_job_registry.count, queue.failed_job_registry.count, queue.deferred_job_registry.count,
            queue.scheduled_job_registry.count, queue.started_job_registry.count, queue.canceled_job_registry.count]


@check("rq: jobs, results, failures")
def jobs(t):
    work = Work(t)
    good = [work.queue.enqueue(functions.add, i, i) for i in range(5)]
    bad = work.queue.enqueue(functions.fail, "on purpose")
    front = work.queue.enqueue(functions.add, 10, 10, at_front=True)
    t.see("positions", [work.queue.get_job_position(front), work.queue.get_job_position(good[4])])
    work.run()
    t.see("order", functions.RAN)
    t.same("results", [job.return_value() for job in good], [0, 2, 4, 6, 8])
    t.see("states", work.states(front, bad))
    t.see("failure", bad.latest_result().exc_string.splitlines()[-1])
    t.see("counts", counts(work.queue))
    bad.requeue()
    t.see("once more", [*work.states(bad), work.queue.count])
    work.run()
    t.see("counts after", counts(work.queue))


@check("rq: unique jobs")
def unique(t):
    work = Work(t)
    work.queue.enqueue(functions.add, 1, 1, job_id="only", unique=True)
    t.see("second", error_of(work.queue.enqueue, functions.add, 2, 2, job_id="only", unique=True))
    t.see("third, later", error_of(work.queue.enqueue_in, ENOUGH, functions.add, 3, 3, job_id="only", unique=True))
    work.run()
    t.see("ran", functions.RAN)
    t.see_keys("keys", but=r"worker")


@check("rq: dependencies")
def dependencies(t):
    work = Work(t)
    first = work.queue.enqueue(functions.add, 1, 1)
    second = work.queue.enqueue(functions.add, 2, 2, depends_on=first)
    third = work.queue.enqueue(functions.add, 3, 3, depends_on=[first, second])
    bad = work.queue.enqueue(functions.fail, "x")
    never = work.queue.enqueue(functions.add, 4, 4, depends_on=bad)
    anyway = work.queue.enqueue(functions.add, 5, 5, depends_on=Dependency(bad, allow_failure=True))
    t.see("before", [work.states(first, second, third, bad, never, anyway), counts(work.queue)])
    work.run()
    t.see("order", functions.RAN)
    t.see("after", [work.states(first, second, third, bad, never, anyway), counts(work.queue)])


@check("rq: limits of what runs at a time")
def limits(t):
    work = Work(t)
    limit = RateLimit("tenant", 2)
    # Those of the same second come in the order of their names.
    limited = [work.queue.enqueue(functions.add, i, 0, rate_limit=limit, job_id=f"job-{i}") for i in range(6)]
    t.see("before", [work.states(*limited), work.queue.count])
    limited[5].cancel()
    limited[0].cancel()
    t.see("cancelled", [work.states(*limited), work.queue.count])
    work.run()
    t.see("order", functions.RAN)
    t.see("after", work.states(*limited))
    t.see_keys("keys of limits", but=r"^(?!.*(limit|tenant))")


@check("rq: retries, callbacks, repetition")
def retries(t):
    work = Work(t)
    kinds = {"on_success": Callback(functions.told), "on_failure": Callback(functions.told_of_failure)}
    good = work.queue.enqueue(functions.well_at, "good", 3, retry=Retry(max=3), **kinds)
    bad = work.queue.enqueue(functions.well_at, "bad", 9, retry=Retry(max=2), **kinds)
    later = work.queue.enqueue(functions.well_at, "later", 9, retry=Retry(max=2, interval=3600))
    work.run()
    t.see("attempts", functions.ATTEMPTS)
    t.see("states", work.states(good, bad, later))
    t.see("told", work.client.lrange("told", 0, -1))
    t.see("counts", counts(work.queue))


@check("rq: scheduled, cancelled, deleted, emptied")
def scheduled(t):
    work = Work(t)
    past = work.queue.enqueue_at(datetime.datetime(2020, 1, 1), functions.add, 1, 1)
    future = work.queue.enqueue_in(ENOUGH, functions.add, 2, 2)
    t.see("before", counts(work.queue))
    scheduler = RQScheduler([work.queue], connection=work.client)
    t.see("lock", [scheduler.acquire_locks(), RQScheduler([work.queue], connection=work.client).acquire_locks()])
    scheduler.prepare_registries()
    scheduler.enqueue_scheduled_jobs()
    t.see("due", [work.states(past, future), counts(work.queue)])
    scheduler.release_locks()
    work.run()
    other = [work.queue.enqueue(functions.add, i, i) for i in range(6)]
    other[0].cancel()
    other[1].delete()
    t.see("gone", [Job.exists(other[1].id, work.client), error_of(Job.fetch, other[1].id, connection=work.client) is not None])
    t.see("counts", counts(work.queue))
    # A script empties a queue, and finds the jobs by keys that it makes up.
    t.same("emptied", work.queue.empty(), 4)
    t.see("counts after", counts(work.queue))
    FailedJobRegistry(queue=work.queue).cleanup()
    work.queue.delete()
    t.see_keys("keys", but=r"worker|scheduler")


@check("rq: several queues, several workers")
def several(t):
    work = Work(t)
    high, low = Queue("high", connection=work.client), Queue("low", connection=work.client)
    low.enqueue(functions.add, 1, 1)
    high.enqueue(functions.add, 2, 2)
    work.run(high, low)
    t.same("order", functions.RAN, ["add 2 2", "add 1 1"])
    functions.RAN.clear()
    many = Queue.enqueue_many(low, [Queue.prepare_data(functions.add, args=(i, 0), job_id=f"job-{i}") for i in range(60)])
    threads = [threading.Thread(target=run_elsewhere, args=(t.port, "low")) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    t.same("each once", sorted(functions.RAN), sorted(f"add {i} 0" for i in range(60)))
    t.see("states", sorted({job.get_status().value for job in many}))
    send_shutdown_command(work.client, "nobody")


def run_elsewhere(port, name):
    """A worker outside the main thread, where signals cannot be handled."""
    import redis

    class Worker(SimpleWorker):
        def _install_signal_handlers(self):
            pass

    from rq.timeouts import TimerDeathPenalty

    Worker.death_penalty_class = TimerDeathPenalty
    client = redis.Redis(port=port)
    Worker([Queue(name, connection=client)], connection=client).work(burst=True, logging_level="ERROR")
    client.close()


if __name__ == "__main__":
    main()
