"""The job queue under any sequence of events: no job is lost or runs twice, slots are respected, urgent jobs first."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from codespec.server.fair_queue import effective_priority, schedule
from codespec.server.handles import Priority, RequestHandle
from codespec.server.jobs import Job, Jobs
from codespec.types import CompletionRequest
from tests.server.fakes import FakeSequence

HANDLES = st.builds(
    lambda prefix, n, priority, document, deadline, scope: RequestHandle(
        CompletionRequest(prefix=prefix, n=n, deadline_ms=deadline, document=document, scope=scope), priority
    ),
    st.sampled_from("abc"),
    st.sampled_from([1, 1, 2, 5]),
    st.sampled_from([Priority.INTERACTIVE, Priority.WARM_UP]),
    st.sampled_from(["", "", "x", "y"]),
    st.sampled_from([None, 1000.0]),
    st.sampled_from(["", "z"]),
)


class Order(RuleBasedStateMachine):
    """Jobs as the dispatcher uses them, next to a set of handles that must be in them."""

    @initialize(slots=st.integers(1, 4))
    def begin(self, slots: int) -> None:
        self.slots = slots
        self.rounds = 0
        self.jobs = Jobs()
        self.open: list[RequestHandle] = []

    @rule(handle=HANDLES)
    def admit(self, handle: RequestHandle) -> None:
        superseded, job = self.jobs.supersede(handle), self.jobs.add(handle)
        same = [other for other in self.open if handle.owner.document and other.owner == handle.owner]
        ended = [other for other in same if other.priority >= handle.priority]
        assert sorted(map(id, superseded)) == sorted(map(id, ended)), "of each document only the newest is open"
        assert job.request == handle.request and handle in job.handles and not job.is_prefetch
        self.open.append(handle)
        for older in superseded:
            self.drop(older)
        for prefetch in self.jobs.prefetches():
            assert self.jobs.end(prefetch) == []

    @rule(handle=HANDLES)
    def prefetch(self, handle: RequestHandle) -> None:
        self.jobs.add_prefetch(replace(handle.request, deadline_ms=None))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.drop(data.draw(st.sampled_from(self.open)))

    def drop(self, handle: RequestHandle) -> None:
        job = self.jobs.detach(handle)
        self.open.remove(handle)
        if job is not None:
            assert not job.handles and job not in self.jobs.running and job not in self.jobs.waiting

    @rule()
    def begin_round(self) -> None:
        """Start a round with the jobs whose turn it is; no round is empty while a job waits."""
        scheduled = schedule(list(self.jobs), self.slots, self.rounds)
        self.rounds += 1
        for job in dict.fromkeys(one.job for one in scheduled):
            if not job.sequences:
                fresh = [FakeSequence(job.request, n) for n in range(job.request.n)]
                self.jobs.start(job, fresh)  # type: ignore[arg-type]
        scheduled = schedule(list(self.jobs), self.slots, self.rounds)
        taking = {one.job for one in scheduled}
        assert bool(scheduled) == bool(self.jobs) and len(set(scheduled)) == len(scheduled) <= self.slots
        assert all(one.choice in one.job.runnable for one in scheduled)
        assert {effective_priority(job) for job in taking} == (
            {min(map(effective_priority, self.jobs))} if scheduled else set()
        )
        assert len(taking) == 1 or not any(job.alone for job in taking)
        for job, choice in scheduled:
            if job.sequences and job.request.max_tokens > job.sequences[choice].num_generated:
                job.sequences[choice].generated += b"."
        for job in self.jobs:
            job.rounds_waited += job not in taking

    @precondition(lambda self: self.jobs.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        for handle in self.jobs.end(data.draw(st.sampled_from(self.jobs.running))):
            self.open.remove(handle)

    @precondition(lambda self: len(self.jobs.running) > 1)
    @rule()
    def fail(self) -> None:
        for job in list(self.jobs.running):
            job.alone = True
            self.jobs.requeue(job)

    @invariant()
    def nobody_is_lost(self) -> None:
        if not hasattr(self, "jobs"):
            return
        jobs: list[Job] = [*self.jobs.running, *self.jobs.waiting]
        assert sorted(map(id, self.open)) == sorted(id(handle) for job in jobs for handle in job.handles)
        assert all(bool(job.handles) != job.is_prefetch for job in jobs)
        assert all(bool(job.sequences) == (job in self.jobs.running) for job in jobs)
        free = [job.request for job in jobs if job.deadline is None and not job.is_prefetch]
        assert len(free) == len(set(free)), "the same is computed twice"


Order.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestOrder = Order.TestCase


def test_who_has_a_deadline_shares_only_what_has_not_begun() -> None:
    jobs, request = Jobs(), CompletionRequest(prefix="a", deadline_ms=50.0)
    job = jobs.add(RequestHandle(request))
    assert jobs.add(RequestHandle(request)) is job
    jobs.start(job, [FakeSequence(request, 0)])  # type: ignore[list-item]
    assert jobs.add(RequestHandle(request)) is not job
