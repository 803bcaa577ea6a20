"""dramatiq: its broker is one script that makes up the names of its keys; and its limiters of rates, delays, retries, results."""

import time

import dramatiq
from dramatiq.brokers.redis import MAINTENANCE_SCALE, RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits import Barrier, BucketRateLimiter, ConcurrentRateLimiter, WindowRateLimiter
from dramatiq.rate_limits.backends import RedisBackend as LimitsBackend
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend as ResultsBackend

from check import check, error_of, main, until

WAIT_MILLISECONDS = 50_000
LONG = 3_600_000


class Work:
    def __init__(self, t, **options):
        self.t = t
        self.client = t.client()
        self.results = ResultsBackend(client=self.client)
        self.limits = LimitsBackend(client=self.client)
        self.broker = self.another_broker(**options)
        self.broker.add_middleware(Results(backend=self.results, store_results=True))
        self.broker.add_middleware(GroupCallbacks(self.limits))
        self.ran = []

    def another_broker(self, **options):
        broker = RedisBroker(url=self.t.url, **options)
        self.t.closing(broker.close)
        return broker

    def actor(self, function, **options):
        return dramatiq.actor(function, broker=self.broker, **options)

    def start(self, n_threads=4):
        worker = dramatiq.Worker(self.broker, worker_timeout=10, worker_threads=n_threads)
        worker.start()
        self.t.closing(lambda: worker.stop(timeout=WAIT_MILLISECONDS))
        return worker

    def result(self, message):
        return message.get_result(backend=self.results, block=True, timeout=WAIT_MILLISECONDS)


@check("dramatiq: messages and results")
def messages(t):
    work = Work(t)

    def add(a, b):
        return a + b

    def fail(text):
        raise ValueError(text)

    add, fail = work.actor(add), work.actor(fail, max_retries=0)
    sent = [add.send(i, i) for i in range(50)]
    bad = fail.send("on purpose")
    t.see_keys("keys before")
    work.start()
    t.same("results", [work.result(message) for message in sent], [2 * i for i in range(50)])
    t.see("failure", error_of(work.result, bad))
    work.broker.join(add.queue_name)
    t.see_keys("keys after", but="dramatiq-results|heartbeats")


@check("dramatiq: order of one worker, priorities and queues")
def order(t):
    work = Work(t)

    def note(name):
        work.ran.append(name)

    first, second = work.actor(note, actor_name="first"), work.actor(note, actor_name="second", queue_name="other")
    for i in range(6):
        first.send(i)
    second.send("other")
    work.start(n_threads=1)
    work.broker.join(first.queue_name)
    work.broker.join(second.queue_name)
    t.see("queues", sorted(work.broker.get_declared_queues()))
    t.same("ran", [sorted(name for name in work.ran if name != "other"), "other" in work.ran], [list(range(6)), True])


@check("dramatiq: delays")
def delays(t):
    work = Work(t)
    ran = []

    def note(name, due):
        ran.append((name, time.time() * 1000 >= due))

    note = work.actor(note)
    now = time.time() * 1000
    for delay in (120, 60):
        note.send_with_options(args=(f"after {delay}", now + delay), delay=delay)
    note.send("now", 0)
    work.start()
    until(lambda: len(ran) == 3)
    t.same("took their time", sorted(ran), [("after 120", True), ("after 60", True), ("now", True)])


@check("dramatiq: retries and dead letters")
def retries(t):
    work = Work(t)
    attempts = {}

    def again(name, well_at):
        attempts[name] = attempts.get(name, 0) + 1
        if attempts[name] < well_at:
            raise RuntimeError(f"attempt {attempts[name]}")
        return attempts[name]

    again = work.actor(again, max_retries=3, min_backoff=1, max_backoff=5)
    good, never = again.send("good", 3), again.send("never", 99)
    work.start()
    t.same("good", work.result(good), 3)
    until(lambda: work.client.zcard("dramatiq:default.XQ") == 1)
    t.see("never", error_of(work.result, never))
    t.same("attempts", attempts, {"good": 3, "never": 4})
    t.see("dead letters", [work.client.hlen("dramatiq:default.XQ.msgs")])
    work.broker.join(again.queue_name)
    t.see_keys("keys", but="dramatiq-results|heartbeats")


@check("dramatiq: a lost worker's messages come back")
def lost(t):
    work = Work(t, heartbeat_timeout=1000, maintenance_chance=MAINTENANCE_SCALE)

    def note(name):
        work.ran.append(name)

    note = work.actor(note)
    for i in range(5):
        note.send(i)
    gone = work.another_broker(heartbeat_timeout=1000, maintenance_chance=MAINTENANCE_SCALE)
    gone.declare_queue(note.queue_name)
    # It takes messages, and is not heard of again.
    taken = next(iter(gone.consume(note.queue_name, prefetch=5, timeout=100)))
    t.same("taken", [taken is not None, work.client.llen("dramatiq:default")], [True, 0])
    work.start()
    # A worker that stands still for long is taken for lost as well, so that a message may come more than once.
    until(lambda: set(work.ran) == set(range(5)))
    work.broker.join(note.queue_name)


@check("dramatiq: chains and groups")
def composition(t):
    work = Work(t)

    def add(a, b):
        return a + b

    def done(name):
        work.ran.append(name)

    add, done = work.actor(add), work.actor(done)
    work.start()
    pipe = dramatiq.pipeline([add.message(1, 2), add.message(3), add.message(4)], broker=work.broker).run()
    t.same("chain", pipe.get_result(block=True, timeout=WAIT_MILLISECONDS), 10)
    group = dramatiq.group([add.message(i, 1) for i in range(20)], broker=work.broker)
    group.add_completion_callback(done.message("all"))
    group.run()
    t.same("group", list(group.get_results(block=True, timeout=WAIT_MILLISECONDS)), list(range(1, 21)))
    until(lambda: work.ran)
    t.same("told once", work.ran, ["all"])


@check("dramatiq: limiters of rates")
def limiters(t):
    work = Work(t)

    def tries(limiter, n):
        outcomes = []
        for _ in range(n):
            with limiter.acquire(raise_on_failure=False) as acquired:
                outcomes.append(acquired)
        return outcomes

    bucket = BucketRateLimiter(work.limits, "bucket", limit=3, bucket=LONG)
    t.same("bucket", tries(bucket, 5), [True, True, True, False, False])
    window = WindowRateLimiter(work.limits, "window", limit=4, window=LONG // 1000)
    t.same("window", tries(window, 6), [True] * 4 + [False] * 2)
    mutex = ConcurrentRateLimiter(work.limits, "mutex", limit=2, ttl=LONG)
    with mutex.acquire() as one, mutex.acquire() as two, mutex.acquire(raise_on_failure=False) as three:
        t.same("at a time", [one, two, three], [True, True, False])
    t.same("afterwards", tries(mutex, 2), [True, True])
    barrier = Barrier(work.limits, "barrier", ttl=LONG)
    t.see("barrier", [barrier.create(parties=3), barrier.wait(block=False), barrier.wait(block=False), barrier.wait(block=False)])
    t.see_keys("keys", but="window")


@check("dramatiq: many messages over several workers, each once")
def many(t):
    work = Work(t)
    n = 400

    def count(i):
        work.ran.append(i)

    count = work.actor(count)
    for _ in range(3):
        work.start(n_threads=2)
    for i in range(n):
        count.send(i)
    until(lambda: len(work.ran) >= n)
    work.broker.join(count.queue_name)
    t.same("each once", sorted(work.ran), list(range(n)))


@check("dramatiq: a queue is flushed")
def flush(t):
    work = Work(t)
    note = work.actor(lambda name: None, actor_name="note")
    for i in range(10):
        note.send(i)
    t.see("size", work.client.llen("dramatiq:default"))
    work.broker.flush_all()
    t.see_keys("keys")


if __name__ == "__main__":
    main()
