"""The list of checks of a library, and the words for its results."""

import sys
import traceback

CHECKS = []


def check(function):
    """Adds a check: it fails by an exception."""
    CHECKS.append(function)
    return function


def expect(found, wanted):
    assert found == wanted, f"found {found!r}, wanted {wanted!r}"


def run(*arguments):
    """Runs all checks, and ends the program: with 0 if all hold."""
    n_failed = 0
    for function in CHECKS:
        name = function.__name__.replace("_", " ")
        try:
            function(*arguments)
        except Exception:
            n_failed += 1
            print(f"  FAIL {name}\n{traceback.format_exc()}")
        else:
            print(f"  ok   {name}")
    sys.exit(1 if n_failed or not CHECKS else 0)


def run_with_both_protocols(connect):
    """Runs all checks, each with a client of RESP2 and one of RESP3."""

    def with_both(function):
        def both():
            for protocol in (2, 3):
                function(connect(protocol=protocol))

        both.__name__ = function.__name__
        return both

    CHECKS[:] = [with_both(function) for function in CHECKS]
    run()
