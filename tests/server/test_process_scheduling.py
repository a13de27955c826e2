"""Fair turns in a real daemon, counted in its own steps: `test_fair_queue` has all the rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.cli.conftest import LONG, Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.server.daemons import wait_for
from tests.server.test_process import Process, daemon

PATH = "/v1/codespec/complete"
SLOTS = 4
NAMES = count()


@pytest.fixture(scope="module")
def served(models: Models) -> Iterator[Process]:  # noqa: F811
    words = ("--max-batch", str(SLOTS), "--threads", "1", "--no-prefetch")
    with daemon(*models.flags, *words) as process:
        process.until_ready()
        yield process


def body(tokens: int, n: int = 1) -> dict[str, object]:
    """Return a unique request without drafts: one token per round."""
    prefix = f"def f{next(NAMES)}(x):\n"
    return {"prefix": prefix, "max_tokens": tokens, "n": n, "shape": "raw", "speculate": False}


def steps(served: Process) -> int:
    """Return the engine's number of rounds."""
    found = re.search(rb"codespec:steps_total\{[^}]*\} (\d+)", served.ask("GET", "/metrics")[1])
    assert found
    return int(found[1])


def rounds(served: Process, values: dict[str, object]) -> int:
    """Return the number of rounds while a request was sent and answered."""
    before = steps(served)
    status, message = served.ask("POST", PATH, values)
    assert status == 200 and message.count(b'"finish_reason":"length"') == values["n"]
    return steps(served) - before


def test_a_short_request_does_not_wait_for_long_ones(served: Process) -> None:
    """Its own rounds and those that pass while it is sent; waiting for a long one would take thousands."""
    with ExitStack() as stack:
        for _ in range(SLOTS):
            stack.callback(served.open(PATH, body(LONG, SLOTS)).close)
        assert wait_for(lambda: served.num_open() == SLOTS)
        spent = [rounds(served, body(20)) for _ in range(3)]
        assert served.num_open() == SLOTS, "none of them has ended"
    assert max(spent) < LONG // 4, "rounds go on while a request is on its way, so these are more than its own"
    assert wait_for(lambda: served.num_open() == 0)
