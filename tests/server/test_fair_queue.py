"""Fair scheduling, counted in rounds of an engine that writes one token per round.

A short request does not wait for long ones, many requests of one client get no more than few of another, and no request
starves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from codespec.api.types import CompletionRequest, DoneEvent
from codespec.engine.job import Priority, RequestHandle
from codespec.engine.queue import AGING, OLDEST_SHARE, QUANTUM
from codespec.errors import ServeError
from tests.server.test_prefetch import Harness

SLOTS = [1, 3, 4, 8]  # fewer than OLDEST_SHARE, as many, more
LONG = CompletionRequest(prefix="long", max_tokens=400, n=8)
SHORT = CompletionRequest(prefix="short", max_tokens=20)


def wait_of_oldest(slots: int) -> int:
    """Return the rounds before the oldest's share lets another request run first."""
    return 0 if slots >= OLDEST_SHARE else QUANTUM


class Rounds(Harness):
    """An engine's thread without prefetch, and the round in which each handle's last choice ended."""

    def __init__(self, slots: int) -> None:
        super().__init__(prefetch=False, slots=slots)
        self.ended: dict[RequestHandle, int] = {}

    def deliver(self) -> None:
        fresh = [handle for handle, _ in self.queue.outbox]
        super().deliver()
        for handle in fresh:
            done = sum(isinstance(message, DoneEvent) for message in self.found[handle])
            if done == handle.request.n:
                self.ended[handle] = self.queue.rounds

    def run(self, until: Callable[[], bool], most: int, arriving: Callable[[int], Any] = lambda number: None) -> int:
        """Run until a condition holds, at most `most` rounds; call `arriving` before each."""
        for number in range(most):
            if until():
                return number
            arriving(number)
            self.thread.round()
            self.deliver()
        assert until(), f"not within {most} rounds"
        return most


def long_ones(harness: Rounds, number: int = 8) -> list[RequestHandle]:
    return [harness.admit(replace(LONG, prefix=f"long {n}")) for n in range(number)]


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("before", [0, 50])
def test_a_short_one_does_not_wait_for_long_ones(slots: int, before: int) -> None:
    harness = Rounds(slots)
    long = long_ones(harness)
    harness.rounds(before)
    short = harness.admit(SHORT)
    spent = harness.run(lambda: short in harness.ended, SHORT.max_tokens + 2 * wait_of_oldest(slots))
    print(f"{slots} slots: {spent} rounds")
    assert not any(handle in harness.ended for handle in long)


@pytest.mark.parametrize("slots", SLOTS)
def test_a_long_one_ends_while_short_ones_keep_coming(slots: int) -> None:
    """So many that they alone would fill every slot forever."""
    harness = Rounds(slots)
    long = harness.admit(replace(LONG, max_tokens=30))
    names = count()
    own = (
        30 * -(-8 // (slots // OLDEST_SHARE))
        if slots >= OLDEST_SHARE
        else 4 * 30 * -(-8 // slots) + OLDEST_SHARE * QUANTUM
    )

    def arriving(number: int) -> None:
        for _ in range(1 + slots // 10):
            harness.admit(replace(SHORT, prefix=f"short {next(names)}", max_tokens=10))

    spent = harness.run(lambda: long in harness.ended, own + 1, arriving)
    print(f"{slots} slots: {spent} rounds of {own}, {len(harness.ended)} short ones")
    assert len(harness.ended) > spent * slots // 10 // 4, "they had their turns too"


@pytest.mark.parametrize("slots", [2, 4, 8])
def test_each_owner_has_a_turn(slots: int) -> None:
    """One client requests fifty short texts; another client's longer text does not wait for them."""
    harness = Rounds(slots)
    many = [harness.admit(replace(SHORT, prefix=f"{n}", scope="many")) for n in range(50)]
    harness.rounds(3)
    few = harness.admit(replace(SHORT, prefix="one", max_tokens=60, scope="few"))
    harness.run(lambda: few in harness.ended, 60 + wait_of_oldest(slots))
    assert sum(handle in harness.ended for handle in many) < 50


def written(harness: Rounds) -> Counter[str]:
    """Return the tokens by scope."""
    found: Counter[str] = Counter()
    for one in harness.engine.running:
        found[one.request.scope] += one.num_generated
    return found


def test_choices_of_two_owners_share_the_slots() -> None:
    harness = Rounds(8)
    harness.admit(replace(LONG, scope="a"))
    harness.rounds(5)
    harness.admit(replace(LONG, prefix="other", max_tokens=300, scope="b"))
    harness.rounds(3)
    before = written(harness)
    harness.rounds(10)
    assert written(harness) - before == {"a": 40, "b": 40}


@pytest.mark.parametrize("slots", [1, 8])
def test_a_warm_up_waits_for_texts_but_not_for_ever(slots: int) -> None:
    harness = Rounds(slots)
    names = count()

    def arriving(number: int) -> None:
        for _ in range(1 + slots // 10):
            harness.admit(replace(SHORT, prefix=f"short {next(names)}", max_tokens=10))

    arriving(0)
    harness.rounds(2)
    warm = harness.admit(CompletionRequest(prefix="warm", max_tokens=0), Priority.WARM_UP)
    spent = harness.run(lambda: warm in harness.ended, AGING + 2 * QUANTUM, arriving)
    assert spent >= AGING


@pytest.mark.parametrize("slots", [1, 8])
def test_who_tries_again_alone_holds_nobody_up(slots: int) -> None:
    """After a failed round; and it finishes, although others keep arriving."""
    harness = Rounds(slots)
    long = [harness.admit(replace(LONG, prefix=f"{n}", n=1, max_tokens=100)) for n in range(3)]
    broken = harness.admit(replace(SHORT, prefix="BOOM"))
    harness.run(lambda: bool(harness.engine.faults), 100)
    short = harness.admit(SHORT)
    harness.run(lambda: short in harness.ended, SHORT.max_tokens + 3 * QUANTUM)
    assert not any(handle in harness.ended for handle in long)

    def arriving(number: int) -> None:
        if number % 2:
            harness.admit(replace(SHORT, prefix=f"short {number}"))

    harness.run(lambda: all(handle in harness.ended for handle in long), 3 * OLDEST_SHARE * (100 + QUANTUM), arriving)
    assert isinstance(harness.found[broken][-1], ServeError)


def test_nothing_changes_where_all_have_room() -> None:
    harness = Rounds(8)
    handles = [harness.admit(replace(SHORT, prefix=f"{n}", n=2)) for n in range(4)]
    harness.rounds()
    assert harness.ended == dict.fromkeys(handles, SHORT.max_tokens + 1), "one round for the prompt, which they share"
    assert harness.engine.most == 8
