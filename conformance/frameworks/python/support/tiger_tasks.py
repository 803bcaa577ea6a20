"""What tasks of TaskTiger do. Workers import it by its name."""

import redis
import tasktiger


def client(port):
    return redis.Redis(port=port, decode_responses=True)


def note(port, name):
    client(port).rpush("ran", name)


def fail(text):
    raise ValueError(text)


def well_at(port, name, n):
    """Fails up to the n-th time."""
    if client(port).incr(f"attempts:{name}") < n:
        raise ValueError(name)


@tasktiger.TaskTiger(lazy_init=True).task(batch=True)
def batch(params):
    client(params[0]["args"][0]).rpush("batches", " ".join(str(param["args"][1]) for param in params))
