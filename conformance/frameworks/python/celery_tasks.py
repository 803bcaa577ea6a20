"""Celery with the server as broker and as store of results. The last part of a chord is counted by a script."""

import contextlib
import threading
import time

from celery import Celery, chain, chord, group
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Reject

from check import check, error_of, main, until

WAIT_SECONDS = 50


class Work:
    """An application with its tasks, and workers that run in threads of this process."""

    def __init__(self, t, **settings):
        self.t = t
        self.app = Celery("work", broker=t.url, backend=t.url, set_as_current=False)
        self.app.conf.update(broker_connection_retry_on_startup=True, worker_prefetch_multiplier=1, worker_hijack_root_logger=False,
                             task_default_queue="work", result_expires=3600, **settings)
        self.gate, self.ran = threading.Event(), []
        self.define()

    def define(self):
        work = self

        def task(**options):
            # Not shared: the applications of other checks have tasks of these names as well.
            return self.app.task(shared=False, **options)

        @task(name="add")
        def add(a, b):
            return a + b

        @task(name="total")
        def total(numbers):
            return sum(numbers)

        @task(name="fail")
        def fail(text):
            raise ValueError(text)

        @task(name="hold")
        def hold():
            work.gate.wait(WAIT_SECONDS)
            return "released"

        @task(name="note", acks_late=True)
        def note(name):
            work.ran.append((name, time.time()))
            return name

        @task(name="again", bind=True, max_retries=3)
        def again(self, well_at):
            if self.request.retries < well_at:
                raise self.retry(exc=RuntimeError(f"attempt {self.request.retries}"), countdown=0)
            return self.request.retries

        @task(name="progress", bind=True)
        def progress(self):
            self.update_state(state="HALF", meta={"done": 50})
            work.gate.wait(WAIT_SECONDS)
            return "whole"

        @task(name="reject", bind=True, acks_late=True)
        def reject(self):
            raise Reject("no", requeue=False)

        self.add, self.total, self.fail, self.hold, self.note = add, total, fail, hold, note
        self.again, self.progress, self.reject = again, progress, reject

    def start(self, n_threads=4):
        """Starts a worker that ends with the check."""
        stack = contextlib.ExitStack()
        stack.enter_context(start_worker(self.app, pool="threads", concurrency=n_threads, perform_ping_check=False,
                                         shutdown_timeout=WAIT_SECONDS, loglevel="WARNING"))
        self.t.closing(self.app.close)
        self.t.closing(stack.close)
        self.t.closing(self.gate.set)


def get(result):
    return result.get(timeout=WAIT_SECONDS)


@check("celery: results and failures")
def results(t):
    work = Work(t)
    work.start()
    t.same("sum", get(work.add.delay(2, 3)), 5)
    failed = work.fail.delay("on purpose")
    t.see("failure", error_of(get, failed))
    t.see("states", [failed.state, failed.successful(), work.add.AsyncResult("unknown").state])
    t.see("wrong arguments", error_of(get, work.app.send_task("add", args=["a", 1])))
    several = [work.add.delay(i, i) for i in range(40)]
    t.same("several", [get(result) for result in several], [2 * i for i in range(40)])
    several[0].forget()
    t.see("forgotten", several[0].state)
    t.see("alive", [list(reply.values()) for reply in work.app.control.ping(timeout=WAIT_SECONDS, limit=1)])


@check("celery: groups, chains and chords")
def canvas(t):
    work = Work(t)
    work.start()
    t.same("group", get(group(work.add.s(i, 1) for i in range(10))()), list(range(1, 11)))
    t.same("chain", get(chain(work.add.s(1, 2), work.add.s(3), work.add.s(4))()), 10)
    t.same("chord", get(chord([work.add.s(i, i) for i in range(20)])(work.total.s())), 380)
    t.same("large chord", get(chord([work.add.s(i, 0) for i in range(150)])(work.total.s())), 11175)
    t.same("group in a chain", get(chain(work.add.s(1, 1), group(work.add.s(1), work.add.s(2)), work.total.s())()), 7)
    t.same("chord of chords", get(chord([chord([work.add.s(1, 1), work.add.s(2, 2)], work.total.s()), work.add.s(10, 0)])(work.total.s())), 16)
    t.same("chunks", get(work.add.chunks(zip(range(6), range(6)), 2)()), [[0, 2], [4, 6], [8, 10]])
    t.same("map", get(work.total.map([[1, 2], [3, 4]]).delay()), [3, 7])


@check("celery: a chord whose part fails")
def broken_chord(t):
    work = Work(t)
    work.start()
    result = chord([work.add.s(1, 1), work.fail.s("part")])(work.total.s())
    t.see("failure", error_of(get, result))
    # The part's failure is told before the chord's is written.
    until(lambda: result.state == "FAILURE")
    t.same("well afterwards", get(chord([work.add.s(1, 1), work.add.s(2, 2)])(work.total.s())), 6)
    # Of the chord that went well nothing is left, of the other one the parts' results, until they expire.
    client = t.client()
    until(lambda: sizes_of_chords(client) == [2])


def sizes_of_chords(client):
    """How many results each chord has, and None for what else is left of one."""
    return [client.zcard(key) if key.endswith(b".j") else None for key in client.keys("*.[jst]")]


@check("celery: retries")
def retries(t):
    work = Work(t)
    work.start()
    t.same("well in the end", [get(work.again.delay(n)) for n in (0, 1, 3)], [0, 1, 3])
    t.see("never", error_of(get, work.again.delay(9)))


@check("celery: countdown and time of arrival")
def eta(t):
    work = Work(t)
    work.start()
    start = time.time()
    later = [work.note.apply_async(args=[f"in {n} ms"], countdown=n / 1000) for n in (300, 100)]
    now = work.note.delay("now")
    for result in [now, *later]:
        get(result)
    started = dict(work.ran)
    t.same("took their time", [started[f"in {n} ms"] >= start + n / 1000 - 0.01 for n in (100, 300)], [True, True])
    t.same("all", sorted(started), ["in 100 ms", "in 300 ms", "now"])
    expired = work.note.apply_async(args=["too late"], expires=time.time() - 10)
    t.see("expired", error_of(get, expired))


@check("celery: revoked before it starts")
def revoke(t):
    work = Work(t)
    work.start(n_threads=1)
    held = work.hold.delay()
    waiting = [work.note.delay(f"note {i}") for i in range(3)]
    replies = work.app.control.revoke(waiting[1].id, reply=True, timeout=WAIT_SECONDS, limit=1)
    t.same("told", len(replies), 1)
    work.gate.set()
    t.same("released", get(held), "released")
    t.see("ends", [error_of(get, result) for result in waiting])
    t.see("states", [result.state for result in waiting])


@check("celery: states of one's own")
def states(t):
    work = Work(t)
    work.start()
    result = work.progress.delay()
    until(lambda: result.state == "HALF")
    t.see("half", result.info)
    work.gate.set()
    t.same("whole", get(result), "whole")


@check("celery: priorities, rejection, purge")
def priorities(t):
    work = Work(t, broker_transport_options={"priority_steps": [0, 3, 6, 9], "queue_order_strategy": "priority"})
    sent = [work.note.apply_async(args=[f"{priority}-{i}"], priority=priority) for i, priority in enumerate([9, 3, 0, 6, 3, 0])]
    t.see_keys("keys")
    work.start(n_threads=1)
    for result in sent:
        get(result)
    t.same("order", [name for name, _ in work.ran], ["0-2", "0-5", "3-1", "3-4", "6-3", "9-0"])
    work.reject.delay()
    get(work.note.delay("after"))
    t.see_keys("what waits", but=r"^(?!work|unacked)")
    work.t.close()
    work.t.closers.clear()
    for i in range(5):
        work.note.delay(f"more {i}")
    t.same("purged", work.app.control.purge(), 5)


if __name__ == "__main__":
    main()
