"""Computed before it is asked for: what follows a finished text, as if it had been accepted; it delays nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from codespec.server.ahead import MOST, NOTE, SECONDS, Ahead, follow_up, is_answered_by
from codespec.server.desk import Desk
from codespec.server.tickets import Ask, Failed, Message, Priority, Ticket
from codespec.types import Completion, CompletionRequest, DoneEvent, RoundEvent, Stats, TextEvent
from tests.server.fakes import FakeEngine, answer

REQUEST = CompletionRequest(prefix="abc", max_tokens=20, document="a", shape="auto")


class Office:
    """A desk, the tickets handed in and what came back for them."""

    def __init__(self, prefetch: bool = True, slots: int = 4) -> None:
        self.engine = FakeEngine()
        self.desk = Desk(self.engine, slots, prefetch)  # type: ignore[arg-type]
        self.found: dict[Ticket, list[Message]] = {}

    def admit(self, request: CompletionRequest, priority: Priority = Priority.INTERACTIVE) -> Ticket:
        ticket = Ticket(Ask(request, priority))
        self.found[ticket] = []
        self.desk.admit(ticket)
        self.deliver()
        return ticket

    def rounds(self, count: int = 1000) -> int:
        """So many rounds, or until nothing is left to do."""
        for done in range(count):
            if not self.desk.jobs:
                return done
            self.desk.round()
            self.deliver()
        return count

    def deliver(self) -> None:
        for ticket, messages in self.desk.outbox:
            self.found[ticket] += messages
        self.desk.outbox.clear()

    def text(self, ticket: Ticket) -> str:
        return "".join(message.text for message in self.found[ticket] if isinstance(message, TextEvent))

    def end(self, ticket: Ticket) -> Completion:
        (done,) = (message.completion for message in self.found[ticket] if isinstance(message, DoneEvent))
        return done

    @property
    def asked(self) -> list[str]:
        """The prefixes that the engine was given."""
        return [request.prefix for request in self.engine.submitted]


def accepted(request: CompletionRequest, **change: Any) -> CompletionRequest:
    """What the editor asks next."""
    return replace(request, prefix=request.prefix + answer(request), **change)


def test_what_follows_is_there_at_once() -> None:
    office = Office()
    first = office.admit(REQUEST)
    office.rounds()
    steps = office.engine.steps
    second = office.admit(accepted(REQUEST, deadline_ms=5.0))
    assert office.text(second) == answer(accepted(REQUEST)) and office.end(second).finish_reason == "length"
    assert office.engine.steps == steps, "nothing is computed for it"
    assert NOTE in office.end(second).stats.notes and NOTE not in office.end(first).stats.notes
    office.rounds()
    third = office.admit(accepted(accepted(REQUEST)))
    assert office.text(third) == answer(accepted(accepted(REQUEST))), "and so on, one behind the other"
    assert len(office.asked) == 3


def test_who_asks_while_it_is_computed_gets_the_beginning_and_the_rest() -> None:
    office = Office()
    office.admit(REQUEST)
    office.rounds(25)
    assert len(office.asked) == 2
    second = office.admit(accepted(REQUEST))
    begun = office.text(second)
    assert 0 < len(begun) < 20
    office.rounds(30)
    assert office.text(second) == answer(accepted(REQUEST)) and len(office.asked) == 3, "the third is ahead again"


def test_a_deadline_holds_for_what_was_begun_before() -> None:
    office = Office()
    office.admit(REQUEST)
    office.rounds(25)
    second = office.admit(accepted(REQUEST, deadline_ms=60_000.0))
    (job,) = office.desk.jobs.running
    assert job.deadline == second.arrived + 60 and job.sequences[0].deadline == job.deadline


@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.WARM_UP])
@pytest.mark.parametrize("document", ["a", "b", ""])
def test_anybody_who_comes_ends_it_before_the_next_round(priority: Priority, document: str) -> None:
    office = Office(slots=8)
    office.admit(REQUEST)
    office.rounds(25)
    assert len(office.engine.running) == 1 and office.engine.running[0].request == accepted(REQUEST)
    office.admit(replace(REQUEST, prefix="else", document=document), priority)
    assert not office.engine.running
    office.rounds(1)
    assert [one.request.prefix for one in office.engine.running] == ["else"]


def test_it_waits_until_nothing_else_is_to_be_done() -> None:
    office = Office(slots=1)
    office.admit(REQUEST)
    office.rounds(10)
    warm = office.admit(replace(REQUEST, prefix="warm", max_tokens=0), Priority.WARM_UP)
    office.admit(replace(REQUEST, prefix="other", document="b"))
    office.rounds()
    assert office.asked[:3] == ["abc", "other", "warm"] and office.end(warm).finish_reason == "length"
    ahead = {accepted(REQUEST).prefix, accepted(replace(REQUEST, prefix="other")).prefix}
    assert set(office.asked[3:]) == ahead


def test_it_begins_when_nobody_came_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("codespec.server.desk.time.perf_counter", lambda: clock[0])
    office = Office()
    office.desk.patience = 0.5
    assert office.desk.idle_for is None
    office.admit(REQUEST)
    assert office.desk.idle_for == 0.0
    office.rounds()
    assert office.desk.idle_for == 0.5 and office.asked == [REQUEST.prefix]
    clock[0] += 0.3
    other = office.admit(replace(REQUEST, prefix="other"))
    office.rounds()
    assert office.text(other) and office.desk.idle_for == 0.5, "who came put it off"
    clock[0] += 0.6
    assert office.desk.idle_for == 0.0
    office.desk.round()
    office.rounds()
    assert office.asked == [REQUEST.prefix, "other", accepted(replace(REQUEST, prefix="other")).prefix]
    assert office.desk.idle_for is None


def test_another_text_takes_it_away() -> None:
    office = Office()
    office.admit(REQUEST)
    office.rounds()
    office.admit(replace(REQUEST, prefix="abcd"))
    office.rounds()
    office.admit(accepted(REQUEST))
    office.rounds()
    assert office.asked.count(accepted(REQUEST).prefix) == 2


def test_it_answers_the_scope_that_it_was_computed_for() -> None:
    """Another one's document of the same name neither gets it nor takes it away."""
    office = Office()
    office.admit(REQUEST)
    office.rounds()
    other = office.admit(replace(accepted(REQUEST), scope="another's"))
    office.rounds()
    mine = office.admit(accepted(REQUEST))
    assert NOTE not in office.end(other).stats.notes and NOTE in office.end(mine).stats.notes
    assert office.text(other) == office.text(mine)


def test_while_it_is_computed_it_answers_its_scope_only() -> None:
    office = Office()
    office.admit(REQUEST)
    office.rounds(25)
    other = office.admit(replace(accepted(REQUEST), scope="another's"))
    assert not office.text(other), "nothing was begun for this one"
    office.rounds(30)
    assert office.text(other) == answer(accepted(REQUEST)) and office.engine.submitted[2].scope == "another's"


def test_a_fault_in_it_is_nobodys() -> None:
    office = Office()
    office.desk.jobs.add_ahead(Ask(replace(REQUEST, prefix="BOOM"), Priority.AHEAD))
    office.rounds()
    assert office.engine.faults == ["BOOM"] and not office.desk.jobs and not office.desk.outbox


@pytest.mark.parametrize("change", [{"n": 2}, {"document": ""}, {"max_tokens": 0}])
def test_what_has_no_next_is_left_alone(change: dict[str, Any]) -> None:
    office = Office()
    priority = Priority.INTERACTIVE if change.get("max_tokens", 1) else Priority.WARM_UP
    office.admit(replace(REQUEST, **change), priority)
    office.rounds()
    assert len(office.asked) == 1


def test_it_can_be_turned_off() -> None:
    office = Office(prefetch=False)
    office.admit(REQUEST)
    office.rounds()
    assert len(office.asked) == 1 and not len(office.desk.ahead)


def told(text: str, reason: Any = "stop") -> list[Message]:
    events: list[Message] = [RoundEvent(0, "", 0, 0, "", "", text, ""), TextEvent(0, text)]
    return [*events, DoneEvent(0, Completion(text, (), reason, Stats()))]


def test_only_a_text_that_was_finished_is_gone_on_from() -> None:
    ask = Ask(REQUEST)
    found = follow_up(Ask(replace(REQUEST, deadline_ms=9.0)), told("x"))
    assert found is not None and found.request == replace(REQUEST, prefix="abcx") and found.priority == Priority.AHEAD
    assert follow_up(ask, told(" \n")) is follow_up(ask, told("x", "deadline")) is None
    assert follow_up(ask, told("x", "cancelled")) is follow_up(ask, [Failed(ValueError())]) is None  # type: ignore[arg-type]
    assert follow_up(replace(ask, priority=Priority.WARM_UP), told("x")) is None
    assert follow_up(replace(ask, after_first_ms=3.0), told("x")) is None


def test_a_client_that_sends_the_last_part_only_is_answered_too() -> None:
    long = replace(REQUEST, prefix="0123456789", prefix_offset=100)
    clipped = replace(long, prefix="456789", prefix_offset=104, deadline_ms=50.0)
    assert is_answered_by(Ask(clipped), long) and is_answered_by(Ask(long), long)
    for other in (
        replace(clipped, prefix_offset=103),
        replace(clipped, suffix="x"),
        replace(clipped, seed=1),
        replace(long, prefix_offset=99),
        replace(clipped, document="b"),
    ):
        assert not is_answered_by(Ask(other), long)
    assert not is_answered_by(Ask(clipped, after_first_ms=9.0), long)


def test_it_is_kept_for_a_while_one_a_document() -> None:
    ahead = Ahead()
    for number in range(MOST + 1):
        ahead.keep(Ask(replace(REQUEST, document=str(number)), Priority.AHEAD), told("x"), 0.0)
    assert len(ahead) == MOST
    assert not ahead.take(Ask(replace(REQUEST, document="0")), 1.0)
    assert ahead.take(Ask(replace(REQUEST, document="1")), SECONDS - 1)
    assert not ahead.take(Ask(replace(REQUEST, document="1")), SECONDS - 1), "it is given once"
    assert not ahead.take(Ask(replace(REQUEST, document="2")), SECONDS + 1)
    assert not ahead.take(Ask(replace(REQUEST, document="3"), Priority.WARM_UP), 1.0)
    assert ahead.take(Ask(replace(REQUEST, document="3")), 1.0), "a warm-up takes nothing"
