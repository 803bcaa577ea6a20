"""What jobs of RQ do. Workers import it by its name."""

RAN = []
ATTEMPTS = {}


def add(a, b):
    RAN.append(f"add {a} {b}")
    return a + b


def fail(text):
    RAN.append(f"fail {text}")
    raise ValueError(text)


def well_at(name, n):
    """Fails up to the n-th time."""
    ATTEMPTS[name] = ATTEMPTS.get(name, 0) + 1
    if ATTEMPTS[name] < n:
        raise RuntimeError(f"attempt {ATTEMPTS[name]}")
    return ATTEMPTS[name]


def told(job, connection, result, *args, **kwargs):
    connection.rpush("told", f"{job.args} well: {result}")


def told_of_failure(job, connection, kind, value, trace):
    connection.rpush("told", f"{job.args} failed: {value}")
