"""Between the tickets and the engine, one round at a time; everything here runs on the engine's thread.

Knows an engine by submit, cancel and step, and what to do when one of them fails; knows no threads and no network.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from codespec.errors import CodespecError, RequestError, ServeError, TokenizerError
from codespec.server.ahead import Ahead, follow_up
from codespec.server.audit import Audit
from codespec.server.jobs import Job, Jobs
from codespec.server.logs import log_failure
from codespec.server.tickets import Ask, Failed, Message, Ticket, nothing
from codespec.server.turns import Turn, choose
from codespec.types import DoneEvent

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

Parcel = tuple[Ticket, Sequence[Message]]


class Desk:
    """Starts, watches and ends jobs. `outbox` fills with what is to be handed to tickets. With `prefetch` it goes on
    behind each document's text when nobody came for `patience` seconds: who types on would wait for a round of it. When
    that is done too, what the `audit` picked is decoded again.
    """

    def __init__(
        self,
        engine: Engine,
        slots: int,
        prefetch: bool = False,
        patience: float = 0.0,
        audit: Audit | None = None,
    ) -> None:
        self.engine = engine
        self.slots = slots
        self.prefetch = prefetch
        self.patience = patience
        self.jobs = Jobs()
        self._planned: list[tuple[float, Ask]] = []  # what to compute ahead, and from when on
        self.ahead = Ahead()
        self.audit = Audit(engine) if audit is None else audit
        self.rounds = 0
        self.outbox: list[Parcel] = []

    @property
    def idle_for(self) -> float | None:
        """Seconds until there is something to do, unless somebody comes; None if there never will be."""
        if self.jobs:
            return 0.0
        due = self._planned[0][0] if self._planned else self.audit.due
        return None if due is None else max(0.0, due - time.perf_counter())

    def admit(self, ticket: Ticket) -> None:
        """Takes a ticket; an older one of its document ends here, and so does what nobody asked for."""
        self._interrupt_audit()
        superseded = self.jobs.supersede(ticket)
        told = self.ahead.take(ticket.ask, time.perf_counter())
        if not told:
            told = self.jobs.add(ticket).log
        if told:
            self._send([ticket], told)
        for older in superseded:
            self.leave(older)
            self._send([older], nothing(older.ask.request, "cancelled"))
        self._planned.clear()
        for job in self.jobs.unasked():
            self._cancel(job)
            self.jobs.end(job)
        if ticket not in self.jobs:
            self.jobs.leave(ticket)
            self._go_on(ticket.ask, told)

    def leave(self, ticket: Ticket) -> None:
        """Nobody waits for this ticket any more: work that only it wanted stops now."""
        job = self.jobs.leave(ticket)
        if job is not None:
            self._cancel(job)

    def round(self) -> None:
        """One step of the engine for those whose turn it is."""
        self._expire()
        self._begin_planned()
        self._begin_audit()
        turns = self._next_turns()
        if turns:
            self._step(turns)
        for job in list(self.jobs.running):
            self._collect(job)

    def refuse_all(self, error: CodespecError) -> None:
        """Ends everything with an error."""
        for job in self.jobs:
            self._send(self.jobs.end(job), [Failed(error)])

    def _expire(self) -> None:
        now = time.perf_counter()
        for job in list(self.jobs.waiting):
            if job.deadline is not None and now >= job.deadline:
                self._send(self.jobs.end(job), nothing(job.ask.request, "deadline"))

    def _next_turns(self) -> list[Turn]:
        """Who takes part in the next round, begun if they had not."""
        while True:
            turns = choose(list(self.jobs), self.slots, self.rounds)
            waiting = [turn.job for turn in turns if not turn.job.sequences]
            if not waiting:
                return turns
            for job in waiting:
                self._start(job)

    def _step(self, turns: Sequence[Turn]) -> None:
        jobs = list(dict.fromkeys(turn.job for turn in turns))
        self.rounds += 1
        for job in self.jobs:
            job.waited += job not in jobs
        try:
            self.engine.step([turn.job.sequences[turn.choice] for turn in turns])
        except Exception as error:  # the border of the engine: one request's fault must not end the others
            self._recover(jobs, error)

    def _start(self, job: Job) -> None:
        try:
            if job.repeats:
                sequences = self.engine.submit_again(job.repeats)
            else:
                sequences = self.engine.submit(job.request_at(time.perf_counter()))
        except TokenizerError as error:
            self._send(self.jobs.end(job), [Failed(RequestError(str(error), "prefix"))])
        except CodespecError as error:
            self._send(self.jobs.end(job), [Failed(error)])
        except Exception as error:  # the border of the engine: a request it cannot even take ends alone
            self._fail(job, error)
        else:
            for sequence in sequences:
                sequence.listening = True
                sequence.started = min((ticket.arrived for ticket in job.tickets), default=sequence.started)
            self.jobs.start(job, sequences)

    def _recover(self, failed: Sequence[Job], error: Exception) -> None:
        """After a failed round: who took part alone is at fault; who did not tries again alone."""
        for job in failed:
            self._cancel(job)
        if len(failed) == 1:
            self._fail(failed[0], error)
            return
        for job in failed:
            job.alone = True
            self.jobs.put_back(job)

    def _fail(self, job: Job, error: Exception) -> None:
        log_failure("a request failed in the engine", error)
        kind = type(error).__name__  # its message may hold source text
        if job.repeats:
            self.audit.give_up()
        sentence = f"The engine failed on this request ({kind}): the daemon goes on, other requests are not affected."
        self._send(self.jobs.end(job), [Failed(ServeError(sentence, 500))])

    def _collect(self, job: Job) -> None:
        events = job.read_events()
        if self._is_overdue(job):
            self._cancel(job)
            events += [_as_deadline(event) for event in job.read_events()]
        if events:
            self._send(job.tickets, events)
        if job.finished:
            self.jobs.end(job)
            if job.repeats:
                self.audit.judge(job)
            elif job.unasked:
                self.ahead.keep(job.ask, job.log, time.perf_counter())
            else:
                self.audit.consider(job)
                self._go_on(job.ask, job.log)

    def _go_on(self, ask: Ask, told: Sequence[Message]) -> None:
        """Plans what comes behind a finished text, as if it had been accepted."""
        ask_next = follow_up(ask, told) if self.prefetch else None
        if ask_next is not None:
            self._planned.append((time.perf_counter() + self.patience, ask_next))
            self._begin_planned()

    def _begin_planned(self) -> None:
        now = time.perf_counter()
        while self._planned and self._planned[0][0] <= now:
            self.jobs.add_ahead(self._planned.pop(0)[1])

    def _begin_audit(self) -> None:
        """In idle time, what is due to be decoded again."""
        now = time.perf_counter()
        if self.jobs or self._planned:
            self.audit.put_off(now)
        elif self.audit.due is not None and self.audit.due <= now:
            self.jobs.add_audit(self.audit.begin())

    def _interrupt_audit(self) -> None:
        self.audit.put_off(time.perf_counter())
        for job in self.jobs.audits():
            self._cancel(job)
            self.jobs.end(job)
            self.audit.interrupt()

    def _is_overdue(self, job: Job) -> bool:
        """Whether the limit that counts from the first token has passed, and each choice has a line to show."""
        limit, now = job.ask.after_first_ms, time.perf_counter()
        if limit is None or job.finished:
            return False
        if job.first_token is None and any(sequence.num_generated for sequence in job.sequences):
            job.first_token = now
        late = job.first_token is not None and now >= job.first_token + limit / 1000
        return late and all(b"\n" in sequence.generated[len(sequence.held) :] for sequence in job.sequences)

    def _cancel(self, job: Job) -> None:
        for sequence in job.sequences:
            self.engine.cancel(sequence)

    def _send(self, tickets: Iterable[Ticket], messages: Sequence[Message]) -> None:
        self.outbox += [(ticket, list(messages)) for ticket in tickets]


def _as_deadline(event: Message) -> Message:
    """The end of a choice, said as what it is to the client."""
    if not isinstance(event, DoneEvent) or event.completion.finish_reason != "cancelled":
        return event
    return replace(event, completion=replace(event.completion, finish_reason="deadline"))
