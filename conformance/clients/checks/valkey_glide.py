"""valkey-glide: its core is written in Rust, and asks the server for its role and version."""

import asyncio
import sys

from glide import (
    Batch,
    ConditionalChange,
    ExpirySet,
    ExpiryType,
    GlideClient,
    GlideClientConfiguration,
    InfoSection,
    NodeAddress,
    ProtocolVersion,
    Script,
    StreamReadGroupOptions,
)

import checking
from checking import check, expect

PORT, ANNOUNCED = int(sys.argv[1]), sys.argv[2]


def with_client(function):
    """Makes a check of a coroutine, which is given a client of each protocol."""
    def both():
        for protocol in (ProtocolVersion.RESP2, ProtocolVersion.RESP3):
            asyncio.run(once(protocol))

    async def once(protocol):
        subscriptions = GlideClientConfiguration.PubSubSubscriptions
        modes = GlideClientConfiguration.PubSubChannelModes
        # Subscriptions are a property of a client, and need RESP3.
        topics = subscriptions({modes.Exact: {"news"}}, None, None) if protocol == ProtocolVersion.RESP3 else None
        configuration = GlideClientConfiguration(
            [NodeAddress("127.0.0.1", PORT)], protocol=protocol, client_name="glide", pubsub_subscriptions=topics)
        client = await GlideClient.create(configuration)
        try:
            await function(client, protocol)
        finally:
            await client.close()

    both.__name__ = function.__name__
    return check(both)


@with_client
async def values_of_each_type(client, _):
    await client.flushall()
    expect(await client.set("text", "value", expiry=ExpirySet(ExpiryType.SEC, 100)), "OK")
    expect(await client.set("text", "other", conditional_set=ConditionalChange.ONLY_IF_DOES_NOT_EXIST), None)
    expect(await client.get("text"), b"value")
    expect(await client.hset("hash", {"a": "1"}), 1)
    expect(await client.hgetall("hash"), {b"a": b"1"})
    expect(await client.rpush("list", ["x", "y"]), 2)
    expect(await client.lrange("list", 0, -1), [b"x", b"y"])
    expect(await client.sadd("set", ["m"]), 1)
    expect(await client.smembers("set"), {b"m"})
    expect(await client.zadd("zset", {"one": 1.5}), 1)
    expect(await client.zscore("zset", "one"), 1.5)
    expect(await client.mget(["text", "none"]), [b"value", None])


@with_client
async def streams_and_groups(client, _):
    await client.delete(["stream"])
    added = await client.xadd("stream", [("field", "1")])
    await client.xgroup_create("stream", "group", "0")
    found = await client.xreadgroup({"stream": ">"}, "group", "anne", StreamReadGroupOptions(count=10))
    expect(found, {b"stream": {added: [[b"field", b"1"]]}})
    expect(await client.xack("stream", "group", [added]), 1)


@with_client
async def transactions_and_pipelines(client, _):
    for is_atomic in (True, False):
        batch = Batch(is_atomic=is_atomic)
        batch.set("n", "1")
        batch.incr("n")
        batch.get("n")
        expect(await client.exec(batch, raise_on_error=True), ["OK", 2, b"2"])


@with_client
async def scripts(client, _):
    script = Script("return {KEYS[1], ARGV[1]}")
    expect(await client.invoke_script(script, keys=["k"], args=["a"]), [b"k", b"a"])


@with_client
async def published_messages(client, protocol):
    if protocol == ProtocolVersion.RESP3:
        expect(await client.publish("text", "news"), 1)
        message = await client.get_pubsub_message()
        expect(message.message, b"text")


@with_client
async def what_the_server_tells(client, _):
    info = (await client.info([InfoSection.SERVER])).decode()
    assert ("server_name:valkey" in info) == ANNOUNCED.startswith("valkey"), info
    expect(await client.client_getname(), b"glide")
    expect(await client.custom_command(["HELLO"]) is not None, True)
    expect(await client.config_get(["maxmemory"]), {b"maxmemory": b"0"})


@with_client
async def many_at_once(client, _):
    await asyncio.gather(*[client.set(f"many:{n}", str(n)) for n in range(500)])
    values = await asyncio.gather(*[client.get(f"many:{n}") for n in range(500)])
    expect(values, [str(n).encode() for n in range(500)])


if __name__ == "__main__":
    checking.run()
