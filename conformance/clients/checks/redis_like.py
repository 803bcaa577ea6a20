"""Checks that redis-py and valkey-py share: valkey-py is a fork of it."""

import threading

from checking import check, expect


@check
def values_of_each_type(client):
    client.flushall()
    expect(client.set("text", "value", ex=100), True)
    expect(client.get("text"), "value")
    assert 0 < client.ttl("text") <= 100
    expect(client.hset("hash", mapping={"a": "1", "b": "2"}), 2)
    expect(client.hgetall("hash"), {"a": "1", "b": "2"})
    expect(client.rpush("list", "x", "y", "z"), 3)
    expect(client.lrange("list", 0, -1), ["x", "y", "z"])
    expect(client.sadd("set", "m", "n"), 2)
    # A list, from some versions with RESP2.
    expect(set(client.smembers("set")), {"m", "n"})
    expect(client.zadd("zset", {"one": 1, "two": 2.5}), 2)
    assert [tuple(pair) for pair in client.zrange("zset", 0, -1, withscores=True)] == [("one", 1.0), ("two", 2.5)]
    expect(client.geoadd("places", (13.361389, 38.115556, "Palermo")), 1)
    expect(client.setbit("bits", 7, 1), 0)
    expect(client.pfadd("hll", "a", "b"), 1)
    expect(client.pfcount("hll"), 2)


@check
def streams_and_groups(client):
    client.delete("stream")
    first = client.xadd("stream", {"field": "1"})
    client.xgroup_create("stream", "group", id="0")
    replies = client.xreadgroup("group", "anne", {"stream": ">"}, count=10)
    entries = replies["stream"][0] if isinstance(replies, dict) else replies[0][1]
    expect([tuple(entry) for entry in entries], [(first, {"field": "1"})])
    expect(client.xack("stream", "group", first), 1)
    expect(client.xinfo_stream("stream")["length"], 1)


@check
def deadlines_of_fields(client):
    client.delete("hash")
    client.hset("hash", "field", "value")
    expect(client.execute_command("HEXPIRE", "hash", 100, "FIELDS", 1, "field"), [1])
    [ttl] = client.execute_command("HTTL", "hash", "FIELDS", 1, "field")
    assert 0 < ttl <= 100, ttl


@check
def a_transaction_that_watches(client):
    client.set("counter", 1)

    def add(pipe):
        value = int(pipe.get("counter"))
        pipe.multi()
        pipe.set("counter", value + 1)

    expect(client.transaction(add, "counter"), [True])
    expect(client.get("counter"), "2")


@check
def a_pipeline_without_a_transaction(client):
    with client.pipeline(transaction=False) as pipe:
        pipe.set("a", 1).incr("a").get("a")
        expect(pipe.execute(), [True, 2, "2"])


@check
def scripts_and_functions(client):
    double = client.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    client.set("n", 1)
    expect(double(keys=["n"], args=[4]), 5)
    client.script_flush()
    expect(double(keys=["n"], args=[1]), 6)
    client.function_flush()
    client.function_load("#!lua name=lib\nredis.register_function('hi', function() return 'hello' end)")
    expect(client.fcall("hi", 0), "hello")


@check
def published_messages(client):
    topics = client.pubsub(ignore_subscribe_messages=True)
    topics.subscribe("news")
    while topics.get_message(timeout=10) is not None:
        pass
    expect(client.publish("news", "text"), 1)
    message = None
    while message is None:
        message = topics.get_message(timeout=10)
    expect(message["data"], "text")
    topics.close()


@check
def a_blocking_pop(client):
    client.delete("queue")
    found = []
    waiter = threading.Thread(target=lambda: found.append(client.blpop(["queue"], timeout=30)))
    waiter.start()
    while client.info("clients")["blocked_clients"] == 0:
        pass
    client.rpush("queue", "job")
    waiter.join()
    expect(tuple(found[0]), ("queue", "job"))


@check
def cursors(client):
    client.flushdb()
    client.mset({f"key:{n}": n for n in range(300)})
    expect(len(set(client.scan_iter(match="key:*", count=50))), 300)


@check
def locks(client):
    with client.lock("lock", timeout=10) as lock:
        assert lock.owned()
    expect(client.exists("lock"), 0)


@check
def what_the_server_tells(client):
    info = client.info()
    assert info["connected_clients"] >= 1, info
    assert client.config_get("maxmemory"), "CONFIG GET"
    assert "get" in client.command(), "COMMAND"
    assert any(one["cmd"].startswith("client") for one in client.client_list()), "CLIENT LIST"
    expect(client.client_setname("me"), True)
    expect(client.client_getname(), "me")
    client.slowlog_get()
    client.memory_stats()
    client.latency_latest()
    client.acl_list()
    client.acl_getuser("default")
