"""The order of jobs under any sequence of events: nobody is lost or runs twice, slots are kept to, urgent first."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from codespec.server.jobs import Job, Jobs
from codespec.server.tickets import Ask, Priority, Ticket
from codespec.server.turns import choose, urgency
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
        self.rounds = 0
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
    def begin_round(self) -> None:
        """Who takes part; no round is left out while somebody waits."""
        turns = choose(list(self.jobs), self.slots, self.rounds)
        self.rounds += 1
        for job in dict.fromkeys(turn.job for turn in turns):
            if not job.sequences:
                fresh = [FakeSequence(job.ask.request, n) for n in range(job.ask.request.n)]
                self.jobs.start(job, fresh)  # type: ignore[arg-type]
        turns = choose(list(self.jobs), self.slots, self.rounds)
        taking = {turn.job for turn in turns}
        assert bool(turns) == bool(self.jobs) and len(set(turns)) == len(turns) <= self.slots
        assert all(turn.choice in turn.job.able for turn in turns)
        assert {urgency(job) for job in taking} == ({min(map(urgency, self.jobs))} if turns else set())
        assert len(taking) == 1 or not any(job.alone for job in taking)
        for turn in turns:
            if turn.job.sequences and turn.job.ask.request.max_tokens > turn.job.sequences[turn.choice].num_generated:
                turn.job.sequences[turn.choice].generated += b"."
        for job in self.jobs:
            job.waited += job not in taking

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
        assert all(bool(job.sequences) == (job in self.jobs.running) for job in jobs)
        free = [job.ask.key for job in jobs if not job.ask.limited and not job.unasked]
        assert len(free) == len(set(free)), "the same is computed twice"


Order.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestOrder = Order.TestCase


def test_who_has_a_deadline_shares_only_what_has_not_begun() -> None:
    jobs, ask = Jobs(), Ask(CompletionRequest(prefix="a", deadline_ms=50.0))
    job = jobs.add(Ticket(ask))
    assert jobs.add(Ticket(ask)) is job
    jobs.start(job, [FakeSequence(ask.request, 0)])  # type: ignore[list-item]
    assert jobs.add(Ticket(ask)) is not job
