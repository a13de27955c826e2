"""Audits run only in idle time, are few, and delay no request."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest

from codespec.engine.queue import Priority
from codespec.server.audit import TRIES
from codespec.server.handles import RequestHandle
from tests.server.test_audit import AuditHarness, quiet  # noqa: F401
from tests.server.test_prefetch import REQUEST, accepted


@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.WARM_UP])
def test_who_comes_ends_it_before_the_next_step(priority: Priority) -> None:
    harness = AuditHarness()
    harness.admit(REQUEST)
    harness.until_audited()
    harness.engine.drafted = 0
    newer = harness.admit(replace(REQUEST, prefix="else", max_tokens=20), priority)
    assert not harness.engine.running and not harness.audits, "cancelled before another step"
    steps = harness.engine.steps
    harness.rounds(20)
    assert harness.end(newer).finish_reason == "length" and harness.engine.steps == steps + 20
    harness.idle()
    assert harness.results["same"] == 1 and len(harness.engine.repeated) == 2, "begun again when it was quiet"


def test_the_same_request_does_not_join_it() -> None:
    harness = AuditHarness()
    harness.admit(REQUEST)
    harness.until_audited()
    harness.engine.drafted = 0
    handle = harness.admit(replace(REQUEST, speculate=False))
    assert not harness.engine.running
    harness.rounds(20)
    assert harness.text(handle) and harness.end(handle).finish_reason == "length"


def test_it_is_left_after_some_tries() -> None:
    harness = AuditHarness()
    harness.admit(REQUEST)
    for number in range(TRIES):
        harness.until_audited()
        harness.engine.drafted = 0
        harness.admit(replace(REQUEST, prefix=f"else {number}"))
        harness.rounds(20)
    harness.idle()
    assert harness.results == {"same": 0, "different": 0, "abandoned": 1} and len(harness.engine.repeated) == TRIES


def test_it_comes_after_prefetches() -> None:
    harness = AuditHarness(prefetch=True)
    harness.admit(REQUEST)
    harness.until_audited()
    assert harness.requested == [REQUEST.prefix, accepted(REQUEST).prefix] and len(harness.engine.repeated) == 1
    harness.idle()
    assert harness.results["same"] == 1, "a prefetch is not audited"


def test_it_waits_for_a_quiet_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("codespec.server.dispatcher.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("codespec.server.audit.QUIET", 1.0)
    harness = AuditHarness()
    harness.admit(REQUEST)
    harness.rounds()
    assert harness.dispatcher.idle_for == 1.0
    clock[0] += 0.7
    harness.admit(replace(REQUEST, prefix="else"))
    harness.rounds()
    assert harness.dispatcher.idle_for == 1.0 and not harness.engine.repeated
    clock[0] += 1.0
    assert harness.dispatcher.idle_for == 0.0
    harness.dispatcher.round()
    assert len(harness.engine.repeated) == 1 and len(harness.engine.running) == 1


def test_one_in_so_many() -> None:
    harness = AuditHarness(every=3)
    for number in range(7):
        harness.admit(replace(REQUEST, prefix=f"text {number}"))
        harness.idle()
    assert [request.prefix for request in harness.engine.repeated] == ["text 2", "text 5"]
    assert all(request.speculate is False for request in harness.engine.repeated)


def test_it_can_be_turned_off() -> None:
    harness = AuditHarness(every=0)
    harness.admit(REQUEST)
    harness.rounds()
    assert harness.dispatcher.idle_for is None and not harness.engine.repeated and not any(harness.results.values())


@pytest.mark.parametrize(("count", "length", "pending"), [(5, 10, 2), (2, 3 << 20, 1)])
def test_few_wait(count: int, length: int, pending: int) -> None:
    harness = AuditHarness(slots=8)
    for number in range(count):
        harness.admit(replace(REQUEST, prefix=f"{number}".ljust(length, "x"), document=""))
    harness.rounds()
    assert harness.dispatcher.audit.num_pending == pending and harness.results["abandoned"] == count - pending
    harness.idle()
    assert harness.results["same"] == pending


def test_a_fault_in_it_is_nobodys() -> None:
    harness = AuditHarness()
    handle = harness.admit(REQUEST)
    harness.rounds()
    harness.engine.step = Mock(side_effect=RuntimeError)  # type: ignore[method-assign]
    harness.idle()
    assert harness.results["abandoned"] == 1 and harness.end(handle).finish_reason == "length"


def test_what_nobody_waited_for_is_not_compared() -> None:
    harness = AuditHarness()
    warm, text = replace(REQUEST, max_tokens=0), replace(REQUEST, prefix="z" * 60)
    for handle in (RequestHandle(warm, Priority.WARM_UP), RequestHandle(text)):
        harness.found[handle] = []
        harness.dispatcher.admit(handle)
        harness.engine.drafted = int(handle.priority == Priority.INTERACTIVE)
        harness.rounds(3)
    harness.dispatcher.abort(handle)
    harness.idle()
    assert not harness.engine.repeated
