"""Prefetch: the continuation of a finished completion is computed in advance, and delays no request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from codespec_grammars import Context, Cursor

from codespec.api.types import Completion, CompletionRequest, DoneEvent, RoundEvent, Stats, TextEvent
from codespec.engine.job import Job, Message, Priority, RequestHandle, answers, follow_up
from codespec.engine.queue import MAX_DOCUMENTS, MAX_PREFETCH_AGE_S, NOTE, PrefetchCache
from codespec.errors import ServeError
from codespec.server.daemon import Loaded
from tests.server.fakes import FakeEngine, answer, thread_of

REQUEST = CompletionRequest(prefix="abc", max_tokens=20, document="a", shape="auto")


class Harness:
    """An engine's thread that is not started, its request handles, and the messages delivered to them."""

    def __init__(self, prefetch: bool = True, slots: int = 4) -> None:
        self.engine = FakeEngine(slots=slots)
        self.thread = thread_of(self.engine, 0.0 if prefetch else None)
        self.queue = self.thread.queue
        self.found: dict[RequestHandle, list[Message]] = {}

    def admit(
        self,
        request: CompletionRequest,
        priority: Priority = Priority.INTERACTIVE,
    ) -> RequestHandle:
        handle = RequestHandle(request, priority)
        self.found[handle] = []
        self.queue.admit(handle)
        self.deliver()
        return handle

    def rounds(self, count: int = 1000) -> int:
        """Run this many rounds, or until nothing is left to do."""
        for done in range(count):
            if not self.queue.jobs:
                return done
            self.thread.round()
            self.deliver()
        return count

    def deliver(self) -> None:
        for handle, messages in self.queue.outbox:
            self.found[handle] += messages
        self.queue.outbox.clear()

    def text(self, handle: RequestHandle) -> str:
        return "".join(message.text for message in self.found[handle] if isinstance(message, TextEvent))

    def end(self, handle: RequestHandle) -> Completion:
        (done,) = (message.completion for message in self.found[handle] if isinstance(message, DoneEvent))
        return done

    @property
    def requested(self) -> list[str]:
        """Return the prefixes submitted to the engine."""
        return [request.prefix for request in self.engine.submitted]


def accepted(request: CompletionRequest, **change: Any) -> CompletionRequest:
    """Return the editor's next request after it accepts the completion."""
    return replace(request, prefix=request.prefix + answer(request), **change)


def test_what_follows_is_there_at_once() -> None:
    harness = Harness()
    first = harness.admit(REQUEST)
    harness.rounds()
    steps = harness.engine.steps
    second = harness.admit(accepted(REQUEST, deadline_ms=5.0))
    assert harness.text(second) == answer(accepted(REQUEST)) and harness.end(second).finish_reason == "length"
    assert harness.engine.steps == steps, "nothing is computed for it"
    assert NOTE in harness.end(second).stats.notes and NOTE not in harness.end(first).stats.notes
    harness.rounds()
    third = harness.admit(accepted(accepted(REQUEST)))
    assert harness.text(third) == answer(accepted(accepted(REQUEST))), "and so on, one behind the other"
    assert len(harness.requested) == 3


def test_the_cursor_after_the_text_is_predicted() -> None:
    harness, request = Harness(), replace(REQUEST, prefix="f(", path="a.py", cursor=Cursor(Context.ARGUMENTS, "("))
    harness.admit(request)
    harness.rounds()
    after = Cursor(Context.IDENTIFIER, "(" * accepted(request).prefix.count("("), 4)
    second = harness.admit(accepted(request, cursor=after))
    assert NOTE in harness.end(second).stats.notes
    harness.rounds()
    other = harness.admit(accepted(accepted(request), cursor=Cursor()))
    harness.rounds()
    assert NOTE not in harness.end(other).stats.notes


def test_a_cursor_that_can_not_be_predicted_costs_the_prefetch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec.engine.job.find_place", lambda *_: 1 / 0)
    harness, request = Harness(), replace(REQUEST, path="a.py", cursor=Cursor())
    first = harness.admit(request)
    harness.rounds()
    assert harness.text(first) == answer(request) and harness.requested == [request.prefix]


def test_who_asks_while_it_is_computed_gets_the_beginning_and_the_rest() -> None:
    harness = Harness()
    harness.admit(REQUEST)
    harness.rounds(25)
    assert len(harness.requested) == 2
    second = harness.admit(accepted(REQUEST))
    begun = harness.text(second)
    assert 0 < len(begun) < 20
    harness.rounds(30)
    assert harness.text(second) == answer(accepted(REQUEST)) and len(harness.requested) == 3, (
        "the third is prefetched again"
    )


def test_a_deadline_holds_for_what_was_begun_before() -> None:
    harness = Harness()
    harness.admit(REQUEST)
    harness.rounds(25)
    second = harness.admit(accepted(REQUEST, deadline_ms=60_000.0))
    (job,) = harness.queue.jobs
    assert job.sequences and job.deadline == second.arrived + 60


@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.WARM_UP])
@pytest.mark.parametrize("document", ["a", "b", ""])
def test_anybody_who_comes_ends_it_before_the_next_round(priority: Priority, document: str) -> None:
    harness = Harness(slots=8)
    harness.admit(REQUEST)
    harness.rounds(25)
    assert len(harness.engine.running) == 1 and harness.engine.running[0].request == accepted(REQUEST)
    harness.admit(replace(REQUEST, prefix="else", document=document), priority)
    assert not harness.engine.running
    harness.rounds(1)
    assert [one.request.prefix for one in harness.engine.running] == ["else"]


def test_it_waits_until_nothing_else_is_to_be_done() -> None:
    harness = Harness(slots=1)
    harness.admit(REQUEST)
    harness.rounds(10)
    warm = harness.admit(replace(REQUEST, prefix="warm", max_tokens=0), Priority.WARM_UP)
    harness.admit(replace(REQUEST, prefix="other", document="b"))
    harness.rounds()
    assert harness.requested[:3] == ["abc", "other", "warm"] and harness.end(warm).finish_reason == "length"
    prefetched = {accepted(REQUEST).prefix, accepted(replace(REQUEST, prefix="other")).prefix}
    assert set(harness.requested[3:]) == prefetched


def test_it_begins_when_nobody_came_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("codespec.engine.queue.time.perf_counter", lambda: clock[0])
    harness = Harness()
    harness.queue.patience = 0.5
    assert harness.queue.idle_for(clock[0]) is None
    harness.admit(REQUEST)
    assert harness.queue.idle_for(clock[0]) == 0.0
    harness.rounds()
    assert harness.queue.idle_for(clock[0]) == 0.5 and harness.requested == [REQUEST.prefix]
    clock[0] += 0.3
    other = harness.admit(replace(REQUEST, prefix="other"))
    harness.rounds()
    assert harness.text(other) and harness.queue.idle_for(clock[0]) == 0.5, "who came put it off"
    clock[0] += 0.6
    assert harness.queue.idle_for(clock[0]) == 0.0
    harness.thread.round()
    harness.rounds()
    assert harness.requested == [REQUEST.prefix, "other", accepted(replace(REQUEST, prefix="other")).prefix]
    assert harness.queue.idle_for(clock[0]) is None


def test_another_text_takes_it_away() -> None:
    harness = Harness()
    harness.admit(REQUEST)
    harness.rounds()
    harness.admit(replace(REQUEST, prefix="abcd"))
    harness.rounds()
    harness.admit(accepted(REQUEST))
    harness.rounds()
    assert harness.requested.count(accepted(REQUEST).prefix) == 2


def test_it_answers_the_scope_that_it_was_computed_for() -> None:
    """Another client's document of the same name neither receives nor removes it."""
    harness = Harness()
    harness.admit(REQUEST)
    harness.rounds()
    other = harness.admit(replace(accepted(REQUEST), scope="another's"))
    harness.rounds()
    mine = harness.admit(accepted(REQUEST))
    assert NOTE not in harness.end(other).stats.notes and NOTE in harness.end(mine).stats.notes
    assert harness.text(other) == harness.text(mine)


def test_while_it_is_computed_it_answers_its_scope_only() -> None:
    harness = Harness()
    harness.admit(REQUEST)
    harness.rounds(25)
    other = harness.admit(replace(accepted(REQUEST), scope="another's"))
    assert not harness.text(other), "nothing was begun for this one"
    harness.rounds(30)
    assert harness.text(other) == answer(accepted(REQUEST)) and harness.engine.submitted[2].scope == "another's"


def test_a_fault_in_it_is_nobodys() -> None:
    harness = Harness()
    harness.queue.add(Job(replace(REQUEST, prefix="BOOM"), Priority.PREFETCH))
    harness.rounds()
    assert harness.engine.faults == ["BOOM"] and not harness.queue.jobs and not harness.queue.outbox


@pytest.mark.parametrize("change", [{"n": 2}, {"document": ""}, {"max_tokens": 0}])
def test_what_has_no_next_is_left_alone(change: dict[str, Any]) -> None:
    harness = Harness()
    priority = Priority.INTERACTIVE if change.get("max_tokens", 1) else Priority.WARM_UP
    harness.admit(replace(REQUEST, **change), priority)
    harness.rounds()
    assert len(harness.requested) == 1


def test_it_can_be_turned_off() -> None:
    harness = Harness(prefetch=False)
    harness.admit(REQUEST)
    harness.rounds()
    assert len(harness.requested) == 1 and not len(harness.queue.prefetched)


def test_it_goes_with_the_models_that_wrote_it() -> None:
    harness = Harness()
    harness.admit(REQUEST)
    harness.rounds()
    assert len(harness.queue.prefetched) == 1
    harness.thread.loaded = Loaded.of(harness.engine, "toy", 512, 4)
    harness.thread._free()
    assert not len(harness.queue.prefetched)


def messages(text: str, reason: Any = "stop") -> list[Message]:
    events: list[Message] = [RoundEvent(0, "", 0, 0, "", "", text, ""), TextEvent(0, text)]
    return [*events, DoneEvent(0, Completion(text, (), reason, Stats()))]


def test_only_a_text_that_was_finished_is_gone_on_from() -> None:
    job = follow_up(replace(REQUEST, deadline_ms=9.0), messages("x"))
    assert job is not None and job.request == replace(REQUEST, prefix="abcx")
    assert follow_up(REQUEST, messages(" \n")) is follow_up(REQUEST, messages("x", "deadline")) is None
    assert follow_up(REQUEST, messages("x", "cancelled")) is follow_up(REQUEST, [ServeError("no")]) is None


@pytest.mark.parametrize(("priority", "limit"), [(Priority.WARM_UP, None), (Priority.INTERACTIVE, 60_000.0)])
def test_only_a_plain_request_for_text_is_gone_on_from(priority: Priority, limit: float | None) -> None:
    harness = Harness()
    handle = harness.admit(replace(REQUEST, after_first_ms=limit), priority)
    harness.rounds()
    assert harness.text(handle) == answer(REQUEST) and harness.requested == [REQUEST.prefix]


def test_a_client_that_sends_the_last_part_only_is_answered_too() -> None:
    long = replace(REQUEST, prefix="0123456789", prefix_offset=100)
    clipped = replace(long, prefix="456789", prefix_offset=104, deadline_ms=50.0)
    assert answers(long, clipped) and answers(long, long)
    for other in (
        replace(clipped, prefix_offset=103),
        replace(clipped, suffix="x"),
        replace(clipped, seed=1),
        replace(long, prefix_offset=99),
        replace(clipped, document="b"),
    ):
        assert not answers(long, other)
    assert not answers(long, replace(clipped, after_first_ms=9.0))


def test_it_is_kept_for_a_while_one_a_document() -> None:
    cache = PrefetchCache()
    for number in range(MAX_DOCUMENTS + 1):
        cache.put(replace(REQUEST, document=str(number)), messages("x"), 0.0)
    assert len(cache) == MAX_DOCUMENTS
    assert not cache.take(RequestHandle(replace(REQUEST, document="0")), 1.0)
    assert cache.take(RequestHandle(replace(REQUEST, document="1")), MAX_PREFETCH_AGE_S - 1)
    assert not cache.take(RequestHandle(replace(REQUEST, document="1")), MAX_PREFETCH_AGE_S - 1), "it is given once"
    assert not cache.take(RequestHandle(replace(REQUEST, document="2")), MAX_PREFETCH_AGE_S + 1)
    assert not cache.take(RequestHandle(replace(REQUEST, document="3"), Priority.WARM_UP), 1.0)
    assert cache.take(RequestHandle(replace(REQUEST, document="3")), 1.0), "a warm-up takes nothing"
