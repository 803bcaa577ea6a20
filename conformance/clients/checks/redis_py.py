"""redis-py: sync and asyncio, RESP2 and RESP3, with its client-side cache."""

import asyncio
import sys

import redis
import redis.asyncio
from redis.cache import CacheConfig

import checking
from checking import check, expect

import redis_like  # noqa: F401 (its checks)

PORT, ANNOUNCED = int(sys.argv[1]), sys.argv[2]


def connect(**options):
    return redis.Redis(port=PORT, decode_responses=True, **options)


@check
def the_announced_name(client):
    hello = client.execute_command("HELLO")
    told = hello if isinstance(hello, dict) else dict(zip(hello[::2], hello[1::2]))
    name, version = ANNOUNCED.split("-")
    expect(told["server"], name)
    assert told["version"].startswith(version), told


@check
def client_side_cache(_):
    """The cache answers, and the server tells of changes by others. Servers of other names have none."""
    if not ANNOUNCED.startswith("redis"):
        try:
            connect(protocol=3, cache_config=CacheConfig()).ping()
        except redis.ConnectionError as refused:
            assert "client-side caching is supported by Redis" in str(refused), refused
            return
        raise AssertionError("redis-py has its cache with every server by now: check it")
    cached = connect(protocol=3, cache_config=CacheConfig())
    other = connect()
    other.set("cached", "old")
    expect(cached.get("cached"), "old")
    cache = cached.get_cache()
    assert cache.size == 1, cache.size
    expect(cached.get("cached"), "old")
    other.set("cached", "new")
    # The invalidation was sent before the reply to SET of the same thread, or soon after it.
    while cached.get("cached") != "new":
        pass


@check
def json_and_search_are_refused(client):
    try:
        client.json().set("doc", "$", {"a": 1})
    except redis.ResponseError as refused:
        assert "unknown command" in str(refused), refused
    else:
        raise AssertionError("JSON.SET did not fail")


@check
def asyncio_with_a_pool(_):
    async def work():
        client = redis.asyncio.Redis(port=PORT, decode_responses=True)
        await asyncio.gather(*[client.set(f"async:{n}", n) for n in range(50)])
        expect(await client.mget([f"async:{n}" for n in range(3)]), ["0", "1", "2"])
        async with client.pipeline(transaction=True) as pipe:
            expect(await pipe.incr("async:0").get("async:0").execute(), [1, "1"])
        await client.aclose()

    asyncio.run(work())


if __name__ == "__main__":
    checking.run_with_both_protocols(connect)
