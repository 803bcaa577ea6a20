"""redis-py: registered scripts, alone, in pipelines and over several threads; functions; and the asyncio client."""

import asyncio
import threading

import redis
from redis import asyncio as aioredis

from check import check, error_of, main, until

MULTIPLY = """
redis.call('SET', KEYS[1], ARGV[1])
local value = tonumber(redis.call('GET', KEYS[1]))
return value * ARGV[2]
"""

MESSAGE_PACK = """
local message = cmsgpack.unpack(ARGV[1])
return cjson.encode({hello = message.name, n = #message.list})
"""

LIBRARY = """#!lua name=lib
redis.register_function('put', function(keys, args) return redis.call('SET', keys[1], args[1]) end)
redis.register_function{function_name='read', callback=function(keys) return redis.call('GET', keys[1]) end, flags={'no-writes'}}
"""


def check_both(name):
    """Runs a check once in each protocol."""

    def add(run):
        for protocol in (2, 3):
            check(f"redis-py: {name}, in RESP{protocol}")(lambda t, protocol=protocol: run(t, t.client(protocol=protocol)))

    return add


@check_both("registered scripts")
def registered(t, client):
    multiply = client.register_script(MULTIPLY)
    t.same("called", [multiply(keys=["a"], args=[3, 4]), multiply(keys=["b"], args=[5, 6])], [12, 30])
    client.script_flush()
    t.same("after the server has forgotten", multiply(keys=["a"], args=[7, 8]), 56)
    t.see("exists", client.script_exists(multiply.sha, "f" * 40))
    t.see("failure", error_of(multiply, keys=["a"], args=["x", 1]))
    other = redis.Redis(port=t.port, db=3)
    t.same("by another client", [multiply(keys=["z"], args=[1, 9], client=other), other.get("z"), client.get("z")], [9, b"1", None])
    other.close()
    t.see("flush modes", [client.script_flush("ASYNC"), client.script_flush("SYNC"), error_of(client.script_flush, "LATER")])
    t.see("nothing to kill", error_of(client.script_kill))
    packed = bytes([0x82, 0xA4]) + b"name" + bytes([0xA4]) + b"jean" + bytes([0xA4]) + b"list" + bytes([0x93, 1, 2, 0xC0])
    t.see("packed message", client.register_script(MESSAGE_PACK)(args=[packed]))


@check_both("scripts in pipelines")
def pipelines(t, client):
    multiply = client.register_script(MULTIPLY)
    for transaction in (False, True):
        client.script_flush()
        with client.pipeline(transaction=transaction) as pipe:
            multiply(keys=["a"], args=[2, 3], client=pipe)
            pipe.get("a")
            multiply(keys=["a"], args=[4, 5], client=pipe)
            # Known hashes only: the pipeline loads what the server lacks before it runs.
            t.see("results", pipe.execute())
        with client.pipeline(transaction=transaction) as pipe:
            pipe.eval("return redis.call('INCR', KEYS[1])", 1, "n").eval("return redis.call('NOPE')", 0).incr("n")
            t.see("failing", [str(one) for one in pipe.execute(raise_on_error=False)])
    with client.pipeline() as pipe:
        pipe.watch("a")
        client.set("a", 0)
        pipe.multi()
        multiply(keys=["a"], args=[6, 7], client=pipe)
        t.see("watched", error_of(pipe.execute))


@check_both("functions")
def functions(t, client):
    t.same("load", client.function_load(LIBRARY), "lib" if client.get_encoder().decode_responses else b"lib")
    t.see("call", [client.fcall("put", 1, "k", "v"), client.fcall("read", 1, "k"), client.fcall_ro("read", 1, "k")])
    t.see("errors", [error_of(client.fcall_ro, "put", 1, "k", "v"), error_of(client.fcall, "none", 0), error_of(client.function_load, LIBRARY)])
    dump = client.function_dump()
    t.see("delete", [client.function_delete("lib"), error_of(client.fcall, "read", 1, "k"), error_of(client.function_delete, "lib")])
    t.see("restore", [client.function_restore(dump), client.fcall("read", 1, "k"), error_of(client.function_restore, dump)])
    t.see("lists", [len(client.function_list()), len(client.function_list(library="none*")), client.function_flush(), client.function_list()])
    with client.pipeline() as pipe:
        pipe.function_load(LIBRARY).fcall("put", 1, "k", "w").fcall_ro("read", 1, "k").function_flush()
        t.see("pipeline", pipe.execute())


@check("redis-py: a script that does not end is killed")
def kill(t):
    client, other = t.client(), t.client()
    client.config_set("busy-reply-threshold", 50)
    ends = []
    # An error that a script catches does not save it.
    script = "redis.call('GET', KEYS[1]) while true do pcall(function() end) end"
    thread = threading.Thread(target=lambda: ends.append(error_of(client.eval, script, 1, "held")))
    thread.start()
    until(lambda: "BUSY" in (error_of(other.set, "held", 1) or ""))
    t.see("kill", other.script_kill())
    thread.join()
    t.see("end", ends)
    other.config_set("busy-reply-threshold", 5000)


@check("redis-py: scripts over several threads")
def threads(t):
    move = """
        local taken = redis.call('RPOP', 'from:' .. ARGV[1])
        if not taken then return 0 end
        redis.call('LPUSH', 'to:' .. redis.call('INCR', 'turn') % 3, taken)
        return 1"""
    client = t.client()
    n, moved = 300, []
    for i in range(n):
        client.lpush(f"from:{i % 4}", i)

    def run(which):
        script = t.client().register_script(move)
        while script(args=[which]):
            moved.append(1)

    running = [threading.Thread(target=run, args=(i % 4,)) for i in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    items = [int(item) for i in range(3) for item in client.lrange(f"to:{i}", 0, -1)]
    t.same("moved", [len(moved), sorted(items)], [n, list(range(n))])
    t.see("lengths", [client.llen(f"to:{i}") for i in range(3)])


@check("redis-py: scripts by the asyncio client")
def by_asyncio(t):
    async def run():
        client = aioredis.Redis(port=t.port)
        multiply = client.register_script(MULTIPLY)
        t.same("side by side", await asyncio.gather(*(multiply(keys=[f"k{i}"], args=[i, i]) for i in range(50))), [i * i for i in range(50)])
        async with client.pipeline(transaction=True) as pipe:
            await multiply(keys=["p"], args=[2, 5], client=pipe)
            pipe.get("p")
            t.see("pipeline", await pipe.execute())
        async with client.lock("l", timeout=60):
            t.see("locked", await client.exists("l"))
        await client.aclose()

    asyncio.run(run())


if __name__ == "__main__":
    main()
