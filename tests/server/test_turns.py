"""Turns, counted in rounds of an engine that writes a token a round: who asks for little does not wait for who asks for
much, who asks often gets no more, and nobody starves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from codespec.server.tickets import Failed, Priority, Ticket
from codespec.server.turns import PATIENCE, SHARE, TURN
from codespec.types import CompletionRequest, DoneEvent
from tests.server.test_ahead import Office

SLOTS = [1, 2, 3, 4, 5, 8, 16]
LONG = CompletionRequest(prefix="long", max_tokens=400, n=8)
SHORT = CompletionRequest(prefix="short", max_tokens=20)


def wait_of_oldest(slots: int) -> int:
    """Rounds before the share of the oldest lets somebody else go first."""
    return 0 if slots >= SHARE else TURN


class Rounds(Office):
    """A desk without prefetch, and the round in which each ticket's last choice ended."""

    def __init__(self, slots: int) -> None:
        super().__init__(prefetch=False, slots=slots)
        self.ended: dict[Ticket, int] = {}

    def deliver(self) -> None:
        fresh = [ticket for ticket, _ in self.desk.outbox]
        super().deliver()
        for ticket in fresh:
            done = sum(isinstance(message, DoneEvent) for message in self.found[ticket])
            if done == ticket.ask.request.n:
                self.ended[ticket] = self.desk.rounds

    def run(self, until: Callable[[], bool], most: int, arriving: Callable[[int], Any] = lambda number: None) -> int:
        """Rounds until something holds, at most so many; before each of them, who arrives."""
        for number in range(most):
            if until():
                return number
            arriving(number)
            self.desk.round()
            self.deliver()
        assert until(), f"not within {most} rounds"
        return most


def long_ones(office: Rounds, number: int = 8) -> list[Ticket]:
    return [office.admit(replace(LONG, prefix=f"long {n}")) for n in range(number)]


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("before", [0, 1, 50, 300])
def test_a_short_one_does_not_wait_for_long_ones(slots: int, before: int) -> None:
    office = Rounds(slots)
    long = long_ones(office)
    office.rounds(before)
    short = office.admit(SHORT)
    spent = office.run(lambda: short in office.ended, SHORT.max_tokens + 2 * wait_of_oldest(slots))
    print(f"{slots} slots: {spent} rounds")
    assert not any(ticket in office.ended for ticket in long)


@pytest.mark.parametrize("slots", SLOTS)
def test_a_long_one_ends_while_short_ones_keep_coming(slots: int) -> None:
    """So many that they alone would fill every slot for ever."""
    office = Rounds(slots)
    long = office.admit(replace(LONG, max_tokens=30))
    names = count()
    own = 30 * -(-8 // (slots // SHARE)) if slots >= SHARE else 4 * 30 * -(-8 // slots) + SHARE * TURN

    def arriving(number: int) -> None:
        for _ in range(1 + slots // 10):
            office.admit(replace(SHORT, prefix=f"short {next(names)}", max_tokens=10))

    spent = office.run(lambda: long in office.ended, own + 1, arriving)
    print(f"{slots} slots: {spent} rounds of {own}, {len(office.ended)} short ones")
    assert len(office.ended) > spent * slots // 10 // 4, "they had their turns too"


@pytest.mark.parametrize("slots", [2, 4, 8])
def test_each_owner_has_a_turn(slots: int) -> None:
    """One client asks for fifty short texts; another one's text, which is longer, does not wait for them."""
    office = Rounds(slots)
    many = [office.admit(replace(SHORT, prefix=f"{n}", scope="many")) for n in range(50)]
    office.rounds(3)
    few = office.admit(replace(SHORT, prefix="one", max_tokens=60, scope="few"))
    office.run(lambda: few in office.ended, 60 + wait_of_oldest(slots))
    assert sum(ticket in office.ended for ticket in many) < 50


def written(office: Rounds) -> Counter[str]:
    """Tokens by scope."""
    found: Counter[str] = Counter()
    for one in office.engine.running:
        found[one.request.scope] += one.num_generated
    return found


def test_choices_of_two_owners_share_the_slots() -> None:
    office = Rounds(8)
    office.admit(replace(LONG, scope="a"))
    office.rounds(5)
    office.admit(replace(LONG, prefix="other", max_tokens=300, scope="b"))
    office.rounds(3)
    before = written(office)
    office.rounds(10)
    assert written(office) - before == {"a": 40, "b": 40}


@pytest.mark.parametrize("slots", [1, 8])
def test_a_warm_up_waits_for_texts_but_not_for_ever(slots: int) -> None:
    office = Rounds(slots)
    names = count()

    def arriving(number: int) -> None:
        for _ in range(1 + slots // 10):
            office.admit(replace(SHORT, prefix=f"short {next(names)}", max_tokens=10))

    arriving(0)
    office.rounds(2)
    warm = office.admit(CompletionRequest(prefix="warm", max_tokens=0), Priority.WARM_UP)
    spent = office.run(lambda: warm in office.ended, PATIENCE + 2 * TURN, arriving)
    assert spent >= PATIENCE


@pytest.mark.parametrize("slots", [1, 8])
def test_who_tries_again_alone_holds_nobody_up(slots: int) -> None:
    """After a failed round; and ends, though others keep coming."""
    office = Rounds(slots)
    long = [office.admit(replace(LONG, prefix=f"{n}", n=1, max_tokens=100)) for n in range(3)]
    broken = office.admit(replace(SHORT, prefix="BOOM"))
    office.run(lambda: bool(office.engine.faults), 100)
    short = office.admit(SHORT)
    office.run(lambda: short in office.ended, SHORT.max_tokens + 3 * TURN)
    assert not any(ticket in office.ended for ticket in long)

    def arriving(number: int) -> None:
        if number % 2:
            office.admit(replace(SHORT, prefix=f"short {number}"))

    office.run(lambda: all(ticket in office.ended for ticket in long), 3 * SHARE * (100 + TURN), arriving)
    assert isinstance(office.found[broken][-1], Failed)


def test_nothing_changes_where_all_have_room() -> None:
    office = Rounds(8)
    tickets = [office.admit(replace(SHORT, prefix=f"{n}", n=2)) for n in range(4)]
    office.rounds()
    assert office.ended == dict.fromkeys(tickets, SHORT.max_tokens + 1), "one round for the prompt, which they share"
    assert office.engine.most == 8
