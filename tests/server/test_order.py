"""The queue under any sequence of events: no request is lost or written twice, slots hold, urgent ones go first."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from codespec.api.types import CompletionRequest, DoneEvent, TextEvent
from codespec.engine.job import Job, Priority, RequestHandle
from codespec.engine.queue import effective_priority
from tests.server.fakes import FakeEngine, FakeSequence, answer, thread_of

HANDLES = st.builds(
    lambda prefix, n, tokens, priority, document, deadline, scope: RequestHandle(
        CompletionRequest(prefix=prefix, n=n, max_tokens=tokens, deadline_ms=deadline, document=document, scope=scope),
        priority,
    ),
    st.sampled_from(["a", "b", "c", "BOOM"]),
    st.sampled_from([1, 1, 2, 5]),
    st.sampled_from([4, 4, 60]),
    st.sampled_from([Priority.INTERACTIVE, Priority.WARM_UP]),
    st.sampled_from(["", "", "x", "y"]),
    st.sampled_from([None, 600_000.0]),
    st.sampled_from(["", "z"]),
)


class Order(RuleBasedStateMachine):
    """An engine's thread, not started, next to the handles that must be open in it."""

    @initialize(slots=st.integers(1, 4))
    def begin(self, slots: int) -> None:
        self.engine = FakeEngine(slots=slots)
        self.thread = thread_of(self.engine)
        self.queue = self.thread.queue
        self.open: list[RequestHandle] = []
        self.step, self.engine.step = self.engine.step, self.watch  # type: ignore[method-assign]
        self.wrong: list[str] = []  # a step must not raise: the thread would take it for a fault of the engine

    def watch(self, chosen: Collection[FakeSequence]) -> None:
        """Note a round that breaks a rule."""
        jobs = [job for job in self.queue.jobs if not set(chosen).isdisjoint(job.sequences)]
        going = [job for job in self.queue.jobs if not job.finished]
        rules = {
            "slots": 0 < len(set(chosen)) == len(chosen) <= self.queue.slots,
            "ended": not any(sequence.finish_reason for sequence in chosen),
            "urgent": set(map(effective_priority, jobs)) == {min(map(effective_priority, going))},
            "alone": len(jobs) == 1 or not any(job.alone for job in jobs),
        }
        self.wrong += [name for name, holds in rules.items() if not holds]
        self.step(chosen)

    @rule(handle=HANDLES)
    def admit(self, handle: RequestHandle) -> None:
        same = [other for other in self.open if handle.owner.document and other.owner == handle.owner]
        self.queue.admit(handle)
        job = handle.job
        assert job is not None and job in self.queue.jobs and job.request == handle.request
        assert all(job.priority != Priority.PREFETCH for job in self.queue.jobs)
        self.open.append(handle)
        self.deliver()
        assert all(other.over == (other.priority >= handle.priority) for other in same), "only the newest is open"

    @rule(handle=HANDLES)
    def prefetch(self, handle: RequestHandle) -> None:
        self.queue.add(Job(replace(handle.request, deadline_ms=None), Priority.PREFETCH))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.open))
        self.queue.abort(handle)
        self.open.remove(handle)
        assert handle.job is not None
        assert (handle.job in self.queue.jobs) == any(other.job is handle.job for other in self.open)

    @rule(count=st.integers(1, 8))
    def rounds(self, count: int) -> None:
        """Run some rounds; none is empty while a request waits."""
        for _ in range(count):
            steps, waiting = self.engine.steps, bool(self.queue.jobs)
            self.thread.round()
            self.deliver()
            assert self.engine.steps == steps + waiting and not self.wrong

    def deliver(self) -> None:
        for handle, messages in self.queue.outbox:
            handle.push(messages)
        self.queue.outbox.clear()
        for handle in [handle for handle in self.open if handle.over]:
            self.check(handle)
        self.open = [handle for handle in self.open if not handle.over]

    def check(self, handle: RequestHandle) -> None:
        """Assert that a finished request has the whole text once, whatever failed or was shared."""
        for done in [message for message in handle._messages if isinstance(message, DoneEvent)]:
            texts = [one for one in handle._messages if isinstance(one, TextEvent) and one.choice == done.choice]
            text = "".join(one.text for one in texts)
            if done.completion.finish_reason == "length":
                assert text == answer(handle.request)
            else:
                assert done.completion.finish_reason == "cancelled" and answer(handle.request).startswith(text)
        assert (handle.error is not None) <= (handle.request.prefix == "BOOM")

    @invariant()
    def nobody_is_lost(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert sorted(self.queue.handles, key=self.open.index) == self.open
        assert all(any(handle.job is job for job in self.queue.jobs) for handle in self.open)
        served = [job for job in self.queue.jobs if any(handle.job is job for handle in self.open)]
        assert all((job in served) != (job.priority == Priority.PREFETCH) for job in self.queue.jobs)
        assert sum(len(job.sequences) for job in self.queue.jobs) >= len(self.engine.running), "one runs for nobody"
        free = [job.request for job in served if job.deadline is None]
        assert len(free) == len(set(free)), "the same is computed twice"


Order.TestCase.settings = settings(stateful_step_count=30)
TestOrder = Order.TestCase


def test_who_has_a_deadline_shares_only_what_has_not_begun() -> None:
    thread = thread_of(FakeEngine())
    first, second, third = (RequestHandle(CompletionRequest(prefix="a", deadline_ms=600_000.0)) for _ in range(3))
    thread.queue.admit(first)
    thread.queue.admit(second)
    thread.round()
    thread.queue.admit(third)
    assert first.job is second.job and third.job is not first.job
