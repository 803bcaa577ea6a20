"""Locks and limiters: those of redis-py, python-redis-lock, walrus, limits."""

import threading
import time

import limits
import redis_lock
import walrus
from limits.storage import RedisStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter
from redis.exceptions import LockError

from check import check, error_of, main, until

LONG_SECONDS = 3600
N_THREADS = 6
N_ROUNDS = 15


def critical_section(t, make_lock):
    """Counts in a section that each of several threads enters several times. `make_lock` is given a client."""
    counter = {"n": 0, "inside": 0, "most": 0}

    def run(client):
        for _ in range(N_ROUNDS):
            with make_lock(client):
                counter["inside"] += 1
                counter["most"] = max(counter["most"], counter["inside"])
                n = counter["n"]
                time.sleep(0)
                counter["n"] = n + 1
                counter["inside"] -= 1

    threads = [threading.Thread(target=run, args=(t.client(),)) for _ in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    t.same("counted", [counter["n"], counter["most"]], [N_THREADS * N_ROUNDS, 1])


# redis-py's lock.


@check("redis-py: a lock")
def lock(t):
    client = t.client()
    one, two = client.lock("l", timeout=LONG_SECONDS), client.lock("l", timeout=LONG_SECONDS, blocking=False)
    t.same("taken", [one.acquire(token="one"), two.acquire(), one.locked(), one.owned(), two.owned()], [True, False, True, True, False])
    t.see("longer", [one.extend(100), client.ttl("l") > LONG_SECONDS])
    t.see("replaced", [one.extend(50, replace_ttl=True), client.ttl("l") <= 50])
    t.see("again", [one.reacquire(), client.ttl("l") > 50])
    t.see("not one's own", [error_of(two.release), error_of(two.extend, 10)])
    client.set("l", "stolen")
    t.see("stolen", [error_of(one.extend, 10), error_of(one.reacquire), error_of(one.release)])
    t.see("value", client.get("l"))


@check("redis-py: a lock that ends by itself")
def lock_expires(t):
    client = t.client()
    short = client.lock("l", timeout=0.05)
    start = time.monotonic()
    short.acquire()
    with client.lock("l", timeout=LONG_SECONDS, sleep=0.005):
        t.same("took its time", time.monotonic() - start >= 0.045, True)
        t.see("too late", error_of(short.release))
    t.see("without a limit", error_of(client.lock("m").extend, 1))
    try:
        with client.lock("n", timeout=LONG_SECONDS), client.lock("n", blocking_timeout=0.01):
            t.see("both", True)
    except LockError as error:
        t.see("not both", str(error))


@check("redis-py: a critical section of many")
def lock_section(t):
    critical_section(t, lambda client: client.lock("section", timeout=LONG_SECONDS, sleep=0.001))


# python-redis-lock.


@check("python-redis-lock: a lock")
def other_lock(t):
    client = t.client()
    one, two = redis_lock.Lock(client, "l", expire=LONG_SECONDS, id="one"), redis_lock.Lock(client, "l", expire=LONG_SECONDS, id="two")
    t.same("taken", [one.acquire(), two.acquire(blocking=False), two.locked(), two.get_owner_id()], [True, False, True, "one"])
    t.see("not one's own", [error_of(two.release), error_of(two.extend, 5)])
    one.extend(2 * LONG_SECONDS)
    t.see("longer", client.ttl("lock:l") > LONG_SECONDS)
    waiting = threading.Thread(target=two.acquire)
    waiting.start()
    one.release()
    waiting.join()
    t.see("handed over", two.get_owner_id())
    two.reset()
    redis_lock.reset_all(client)
    t.see_keys("keys")
    t.see("twice", error_of(one.release))


@check("python-redis-lock: a critical section of many")
def other_section(t):
    critical_section(t, lambda client: redis_lock.Lock(client, "section", expire=LONG_SECONDS))


@check("python-redis-lock: a lock that renews itself")
def renewal(t):
    client = t.client()
    with redis_lock.Lock(client, "l", expire=3, auto_renewal=True):
        # Renewal sets it back to three seconds.
        client.expire("lock:l", LONG_SECONDS)
        until(lambda: client.ttl("lock:l") <= 3)
    t.see("freed", client.exists("lock:l"))


# walrus.


@check("walrus: locks")
def walrus_lock(t):
    database = walrus.Database(host="127.0.0.1", port=t.port)
    one, two = database.lock("w", ttl=LONG_SECONDS * 1000, lock_id="one"), database.lock("w", ttl=LONG_SECONDS * 1000, lock_id="two")
    t.see("taken", [one.acquire(block=False), two.acquire(block=False), two.release(), one.release(), two.acquire(block=False)])
    t.see_keys("keys")
    t.see("cleared", [two.clear(), one.acquire(block=False)])


@check("walrus: a limiter, arrays, compare and set")
def walrus_others(t):
    database = walrus.Database(host="127.0.0.1", port=t.port)
    limiter = database.rate_limit_lua("rate", limit=3, per=LONG_SECONDS)
    t.same("limited", [bool(limiter.limit("me")) for _ in range(5)], [False, False, False, True, True])
    array = database.Array("array")
    array.extend(["a", "b", "c", "d", "e"])
    array.append("f")
    array[1] = "B"
    t.see("array", [len(array), array[0], list(array), array[99], error_of(lambda: array[-1])])
    t.see("taken", [array.pop(), array.pop(1), array.pop(0), list(array)])
    del array[0]
    t.see("left", [list(array), "e" in array, database.hgetall("array")])
    database.set("k", "one")
    t.see("compare and set", [database.cas("k", "one", "two"), database.cas("k", "one", "three"), database.get("k")])
    words = database.autocomplete()
    for i, title in enumerate(["testing walrus", "testing redis", "walrus and redis", "the seals"]):
        words.store(i, title)
    t.see("completed", [list(words.search("test")), list(words.search("redi wal")), list(words.search("zz"))])


# limits.


def stepwise(t, strategy, storage):
    limit, other = limits.parse("5/hour"), limits.parse("3/day")
    limiter = strategy(storage)
    t.see("tested", [limiter.test(limit, "me"), limiter.get_window_stats(limit, "me").remaining])
    t.same("hits", [limiter.hit(limit, "me") for _ in range(7)], [True] * 5 + [False] * 2)
    t.see("costs", [limiter.hit(other, "me", cost=2), limiter.hit(other, "me", cost=2), limiter.hit(other, "me", cost=1)])
    t.see("tested after", [limiter.test(limit, "me"), limiter.test(limit, "you"), limiter.get_window_stats(limit, "me").remaining])
    limiter.clear(limit, "me")
    t.see("cleared", [limiter.test(limit, "me"), limiter.get_window_stats(limit, "me").remaining])
    results = []

    def run():
        results.extend(limiter.hit(limits.parse("50/day"), "all") for _ in range(20))

    threads = [threading.Thread(target=run) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    t.same("let through", results.count(True), 50)
    t.see("reset", storage.reset())
    t.see_keys("keys")


def check_limits(name, strategy):
    # The hour or the day may end in between, so that these begin anew then; once more is enough.
    @check(f"limits: {name}")
    def run(t):
        away_from_midnight()
        stepwise(t, strategy, RedisStorage(t.url))


def away_from_midnight():
    """Windows begin with the hour: waits until none begins soon."""
    until(lambda: time.time() % 3600 < 3570)


for one, way in {"fixed window": FixedWindowRateLimiter, "moving window": MovingWindowRateLimiter,
                 "sliding window": SlidingWindowCounterRateLimiter}.items():
    check_limits(one, way)


if __name__ == "__main__":
    main()
