"""iredis: a terminal client that shows replies by the kind of their command."""

import pathlib
import subprocess
import sys

import checking
from checking import check

PORT, ANNOUNCED = sys.argv[1], sys.argv[2]
IREDIS = pathlib.Path(sys.executable).parent / "iredis"


def says(*words):
    """What iredis prints for a command."""
    # It reads commands from its input, unless that is a terminal.
    line = " ".join(words) + "\n"
    done = subprocess.run([IREDIS, "-p", PORT], input=line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shows(words, *parts):
    said = says(*words.split(" "))
    missing = [part for part in parts if part not in said]
    assert not missing, f"{words}: {missing} not in {said!r}"


@check
def replies_of_each_type():
    shows("FLUSHALL", "OK")
    shows("SET text value", "OK")
    shows("GET text", "value")
    shows("HSET hash a 1 b 2", "2")
    shows("HGETALL hash", "a", "1", "b", "2")
    shows("RPUSH list x y", "2")
    shows("LRANGE list 0 -1", "x", "y")
    shows("ZADD zset 1.5 one", "1")
    shows("ZRANGE zset 0 -1 WITHSCORES", "one", "1.5")
    shows("XADD stream 1-1 field value", "1-1")
    shows("XRANGE stream - +", "1-1", "field", "value")
    shows("TTL text", "-1")


@check
def what_the_server_tells():
    name, version = ANNOUNCED.split("-")
    shows("INFO server", f"{name}_version:{version}")
    shows("CLIENT LIST", "cmd=")
    shows("COMMAND INFO get", "get")
    shows("MEMORY STATS", "peak.allocated")
    shows("OBJECT HELP", "ENCODING")


@check
def errors_are_shown():
    shows("NOSUCH command", "unknown command")


if __name__ == "__main__":
    checking.run()
