"""The order of jobs under any sequence of events: nobody is lost or runs twice, slots are kept to, urgent first."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from codespec.server.jobs import Job, Jobs
from codespec.server.tickets import Ask, Priority, Ticket
from codespec.types import CompletionRequest
from tests.server.fakes import FakeSequence

ASKS = st.builds(
    lambda prefix, n, priority, document, deadline, scope: Ask(
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
    """Jobs as the desk uses them, beside a set of tickets that must be in them."""

    @initialize(slots=st.integers(1, 4))
    def begin(self, slots: int) -> None:
        self.slots = slots
        self.jobs = Jobs()
        self.open: list[Ticket] = []

    @rule(ask=ASKS)
    def admit(self, ask: Ask) -> None:
        ticket = Ticket(ask)
        superseded, job = self.jobs.supersede(ticket), self.jobs.add(ticket)
        same = [other for other in self.open if ask.owner.document and other.ask.owner == ask.owner]
        ended = [other for other in same if other.ask.priority >= ask.priority]
        assert sorted(map(id, superseded)) == sorted(map(id, ended)), "of each document only the newest is open"
        assert job.ask.key == ask.key and ticket in job.tickets and not job.unasked
        self.open.append(ticket)
        for older in superseded:
            self.drop(older)
        for unasked in self.jobs.unasked():
            assert self.jobs.end(unasked) == []

    @rule(ask=ASKS)
    def go_on(self, ask: Ask) -> None:
        self.jobs.add_ahead(replace(ask, request=replace(ask.request, deadline_ms=None), priority=Priority.AHEAD))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.drop(data.draw(st.sampled_from(self.open)))

    def drop(self, ticket: Ticket) -> None:
        job = self.jobs.leave(ticket)
        self.open.remove(ticket)
        if job is not None:
            assert not job.tickets and job not in self.jobs.running and job not in self.jobs.waiting

    @rule()
    def start(self) -> None:
        for job in self.jobs.in_the_way():
            self.jobs.put_back(job)
        while (job := self.jobs.next(self.slots)) is not None:
            assert job.order == min(other.order for other in self.jobs.waiting)
            assert all(other.priority >= job.priority for other in self.jobs.running), "the urgent wait for nobody"
            self.jobs.start(job, [FakeSequence(job.ask.request, n) for n in range(job.ask.request.n)])  # type: ignore[misc]
        assert self.jobs.running or not self.jobs.waiting, "somebody waits and nobody runs"

    @precondition(lambda self: self.jobs.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        for ticket in self.jobs.end(data.draw(st.sampled_from(self.jobs.running))):
            self.open.remove(ticket)

    @precondition(lambda self: len(self.jobs.running) > 1)
    @rule()
    def fail(self) -> None:
        for job in list(self.jobs.running):
            job.alone = True
            self.jobs.put_back(job)

    @invariant()
    def nobody_is_lost(self) -> None:
        if not hasattr(self, "jobs"):
            return
        jobs: list[Job] = [*self.jobs.running, *self.jobs.waiting]
        assert sorted(map(id, self.open)) == sorted(id(ticket) for job in jobs for ticket in job.tickets)
        assert all(bool(job.tickets) != job.unasked for job in jobs)
        taken = sum(len(job.sequences) for job in self.jobs.running)
        assert taken <= self.slots or len(self.jobs.running) == 1
        assert len(self.jobs.running) == 1 or not any(job.alone for job in self.jobs.running)
        free = [job.ask.key for job in jobs if not job.ask.limited and not job.unasked]
        assert len(free) == len(set(free)), "the same is computed twice"


Order.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestOrder = Order.TestCase


def test_a_second_try_alone_waits_until_nobody_runs() -> None:
    jobs = Jobs()
    first, second = (jobs.add(Ticket(Ask(CompletionRequest(prefix=prefix)))) for prefix in "ab")
    jobs.start(second, [FakeSequence(second.ask.request, 0)])  # type: ignore[list-item]
    first.alone = True
    assert jobs.next(4) is None
    jobs.end(second)
    assert jobs.next(4) is first


def test_who_has_a_deadline_shares_only_what_has_not_begun() -> None:
    jobs, ask = Jobs(), Ask(CompletionRequest(prefix="a", deadline_ms=50.0))
    job = jobs.add(Ticket(ask))
    assert jobs.add(Ticket(ask)) is job
    jobs.start(job, [FakeSequence(ask.request, 0)])  # type: ignore[list-item]
    assert jobs.add(Ticket(ask)) is not job
