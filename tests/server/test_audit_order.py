"""Completions are decoded again in idle time only: few of them, and nobody waits for it."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest

from codespec.server.audit import TRIES
from codespec.server.tickets import Ask, Priority, Ticket
from tests.server.test_ahead import REQUEST, accepted
from tests.server.test_audit import Auditing, quiet  # noqa: F401


@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.WARM_UP])
def test_who_comes_ends_it_before_the_next_step(priority: Priority) -> None:
    office = Auditing()
    office.admit(REQUEST)
    office.until_audited()
    office.engine.drafted = 0
    newer = office.admit(replace(REQUEST, prefix="else", max_tokens=20), priority)
    assert not office.engine.running and not office.desk.jobs.audits(), "cancelled before another step"
    steps = office.engine.steps
    office.rounds(20)
    assert office.end(newer).finish_reason == "length" and office.engine.steps == steps + 20
    office.idle()
    assert office.results["same"] == 1 and len(office.engine.repeated) == 2, "begun again when it was quiet"


def test_the_same_request_does_not_join_it() -> None:
    office = Auditing()
    office.admit(REQUEST)
    office.until_audited()
    office.engine.drafted = 0
    ticket = office.admit(replace(REQUEST, speculate=False))
    assert not office.engine.running
    office.rounds(20)
    assert office.text(ticket) and office.end(ticket).finish_reason == "length"


def test_it_is_left_after_some_tries() -> None:
    office = Auditing()
    office.admit(REQUEST)
    for number in range(TRIES):
        office.until_audited()
        office.engine.drafted = 0
        office.admit(replace(REQUEST, prefix=f"else {number}"))
        office.rounds(20)
    office.idle()
    assert office.results == {"same": 0, "different": 0, "abandoned": 1} and len(office.engine.repeated) == TRIES


def test_it_comes_behind_what_is_computed_ahead() -> None:
    office = Auditing(prefetch=True)
    office.admit(REQUEST)
    office.until_audited()
    assert office.asked == [REQUEST.prefix, accepted(REQUEST).prefix] and len(office.engine.repeated) == 1
    office.idle()
    assert office.results["same"] == 1, "what was computed ahead is not audited"


def test_it_waits_for_a_quiet_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("codespec.server.desk.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("codespec.server.audit.QUIET", 1.0)
    office = Auditing()
    office.admit(REQUEST)
    office.rounds()
    assert office.desk.idle_for == 1.0
    clock[0] += 0.7
    office.admit(replace(REQUEST, prefix="else"))
    office.rounds()
    assert office.desk.idle_for == 1.0 and not office.engine.repeated
    clock[0] += 1.0
    assert office.desk.idle_for == 0.0
    office.desk.round()
    assert len(office.engine.repeated) == 1 and len(office.engine.running) == 1


def test_one_in_so_many() -> None:
    office = Auditing(every=3)
    for number in range(7):
        office.admit(replace(REQUEST, prefix=f"text {number}"))
        office.idle()
    assert [request.prefix for request in office.engine.repeated] == ["text 2", "text 5"]
    assert all(request.speculate is False for request in office.engine.repeated)


def test_it_can_be_turned_off() -> None:
    office = Auditing(every=0)
    office.admit(REQUEST)
    office.rounds()
    assert office.desk.idle_for is None and not office.engine.repeated and not any(office.results.values())


@pytest.mark.parametrize(("count", "length", "pending"), [(5, 10, 2), (2, 3 << 20, 1)])
def test_few_wait(count: int, length: int, pending: int) -> None:
    office = Auditing(slots=8)
    for number in range(count):
        office.admit(replace(REQUEST, prefix=f"{number}".ljust(length, "x"), document=""))
    office.rounds()
    assert office.desk.audit.num_pending == pending and office.results["abandoned"] == count - pending
    office.idle()
    assert office.results["same"] == pending


def test_a_fault_in_it_is_nobodys() -> None:
    office = Auditing()
    ticket = office.admit(REQUEST)
    office.rounds()
    office.engine.step = Mock(side_effect=RuntimeError)  # type: ignore[method-assign]
    office.idle()
    assert office.results["abandoned"] == 1 and office.end(ticket).finish_reason == "length"


def test_what_nobody_waited_for_is_not_compared() -> None:
    office = Auditing()
    for ask in (Ask(replace(REQUEST, max_tokens=0), Priority.WARM_UP), Ask(replace(REQUEST, prefix="z" * 60))):
        ticket = Ticket(ask)
        office.found[ticket] = []
        office.desk.admit(ticket)
        office.engine.drafted = int(ask.priority == Priority.INTERACTIVE)
        office.rounds(3)
    office.desk.leave(ticket)
    office.idle()
    assert not office.engine.repeated
