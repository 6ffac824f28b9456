"""Holds what the tests with third-party clients share: counting checks, and the e2e tests' server."""
import json
import pathlib
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))

from counting import check, finish  # noqa: E402  pylint: disable=wrong-import-position
from serving import BIN, TINY, Server  # noqa: E402  pylint: disable=wrong-import-position

__all__ = ["BIN", "TINY", "Server", "check", "finish"]  # what clients import from here in addition to the
                                                        # functions below


def check_equal(name, got, wanted):
    check(name, got == wanted, f"got {got!r}, wanted {wanted!r}")


def run(claim, *arguments):
    """Checks one claim: an exception in it is one failure and does not end the others."""
    try:
        claim(*arguments)
    except Exception:  # pylint: disable=broad-except
        check(claim.__name__, False, traceback.format_exc())


def raises(name, error, call):
    """Returns the exception of type `error` that `call()` must end with, or None after counting a failure."""
    try:
        got = call()
    except error as exception:
        check(name, True)
        return exception
    except Exception:  # pylint: disable=broad-except
        check(name, False, traceback.format_exc())
        return None
    check(name, False, f"no error but {got!r}")
    return None


def questions(task, count):
    """Returns the first `count` questions of one of the bundled model's tasks, which the model answers
    correctly."""
    with open(TINY / f"eval/{task}.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(count))]


def wait_until(condition, seconds=60):
    """Tells whether `condition()` came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
