"""valkey-py: sync and asyncio, RESP2 and RESP3."""

import asyncio
import sys

import valkey
import valkey.asyncio

import checking
from checking import check, expect

import redis_like  # noqa: F401 (its checks)

PORT = int(sys.argv[1])


def connect(**options):
    return valkey.Valkey(port=PORT, decode_responses=True, **options)


@check
def commands_of_valkey_9(client):
    client.delete("hash", "string")
    expect(client.execute_command("HSETEX", "hash", "NX", "EX", 100, "FIELDS", 1, "f", "v"), 1)
    client.set("string", "v")
    expect(client.execute_command("DELIFEQ", "string", "other"), 0)
    expect(client.execute_command("DELIFEQ", "string", "v"), 1)
    assert "name=" in client.execute_command("CLIENT", "LIST", "SKIPME", "NO")


@check
def asyncio_with_a_pool(_):
    async def work():
        client = valkey.asyncio.Valkey(port=PORT, decode_responses=True)
        await asyncio.gather(*[client.set(f"async:{n}", n) for n in range(50)])
        expect(await client.mget([f"async:{n}" for n in range(3)]), ["0", "1", "2"])
        await client.aclose()

    asyncio.run(work())


if __name__ == "__main__":
    checking.run_with_both_protocols(connect)
