"""What every program in this folder is made of: named checks, run one after the other against one server.

A check raises when something is plainly wrong, and notes with `t.see` what it observed. The runner compares these notes with
those of the same check against redis-server. They hold only what does not depend on the pace of the machine.

The runner passes the port as the first argument, and then the names of checks to leave out. The variable CHECKS_WITH holds a
word that names must contain. Events go to descriptor 3.
"""

import json
import os
import re
import sys
import time
import traceback

import redis

EVENTS_DESCRIPTOR = 3
HOST = "127.0.0.1"
LIMIT_SECONDS = 60
POLL_SECONDS = 0.005

CHECKS = []


def check(name, limit_seconds=LIMIT_SECONDS):
    """Adds a check. The function is given the object below."""

    def add(run):
        CHECKS.append((name, run, limit_seconds))
        return run

    return add


def tell(event):
    os.write(EVENTS_DESCRIPTOR, (json.dumps(event, default=repr) + "\n").encode())


def until(condition):
    """Waits until the condition holds, and returns what it returned. The check's limit of time bounds it."""
    while not (value := condition()):
        time.sleep(POLL_SECONDS)
    return value


def plain(text):
    """A text without what differs from run to run: identifiers, ports, addresses of objects."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{64}\b|\b[0-9a-f]{32}\b", "<uuid>", str(text))
    return re.sub(r"127\.0\.0\.1:\d+", "<server>", re.sub(r"0x[0-9a-f]+", "<address>", text))


def error_of(function, *args, **kwargs):
    """The kind and the text of the error that a call raises, or None."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return plain(f"{type(error).__name__}: {error}")
    return None


def readable(value):
    """The value as JSON has it: bytes as text, sets as sorted lists."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, (list, tuple)):
        return [readable(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted((readable(one) for one in value), key=repr)
    if isinstance(value, dict):
        return {str(readable(key)): readable(one) for key, one in value.items()}
    return value


SIZES = {"string": "strlen", "list": "llen", "set": "scard", "zset": "zcard", "hash": "hlen", "stream": "xlen"}


class Check:
    """What a check is given."""

    def __init__(self, port):
        self.port, self.url = port, f"redis://{HOST}:{port}/0"
        self.notes, self.closers = [], []

    def see(self, label, value):
        """Notes what was observed, for the comparison with redis-server."""
        self.notes.append([label, readable(value)])

    def same(self, label, value, expected):
        """Notes a value that is known beforehand as well."""
        self.see(label, value)
        if value != expected:
            raise AssertionError(f"{label}: {value!r} in place of {expected!r}")

    def closing(self, close):
        """Has something called at the check's end, the last one first."""
        self.closers.append(close)

    def client(self, **options):
        """A connection of redis-py."""
        client = redis.Redis(host=HOST, port=self.port, **options)
        self.closing(client.close)
        return client

    def see_keys(self, label, but=r"^$"):
        """Notes every key with its type, its size, and whether it expires; but for those whose name matches."""
        client = self.client(decode_responses=True)
        rows = []
        for key in client.keys("*"):
            if re.search(but, key):
                continue
            kind = client.type(key)
            size = getattr(client, SIZES[kind])(key) if kind in SIZES and kind != "string" else 0
            rows.append([plain(key), kind, size, client.pttl(key) >= 0])
        self.see(label, sorted(rows))

    def close(self):
        for close in reversed(self.closers):
            close()


def run_one(name, run, limit_seconds, port):
    tell({"begin": name, "limit": limit_seconds})
    t, error = Check(port), None
    try:
        with redis.Redis(host=HOST, port=port) as client:
            client.flushall()
            # Each for itself: a server that has no functions may well have scripts.
            for command in ("SCRIPT FLUSH", "FUNCTION FLUSH"):
                try:
                    client.execute_command(command)
                except redis.ResponseError:
                    pass
        run(t)
        t.close()
    except BaseException:
        error = traceback.format_exc()
    tell({"end": name, "notes": t.notes, "error": error})
    if error:
        # What a failed check leaves open could disturb the next, so that the runner starts the program anew.
        os._exit(1)


def main():
    """Runs the checks that the arguments do not leave out."""
    port, *left_out = sys.argv[1:]
    wanted = [one for one in CHECKS if os.environ.get("CHECKS_WITH", "") in one[0]]
    tell({"checks": [name for name, _, _ in wanted]})
    for name, run, limit_seconds in wanted:
        if name not in left_out:
            run_one(name, run, limit_seconds, int(port))
    sys.stdout.flush()
    # Threads that a framework has left do not hold up the end.
    os._exit(0)
