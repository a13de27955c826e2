"""Dispatches requests to the engine, one round at a time, on the engine's thread.

Uses the engine's submit, cancel and step, and recovers if one of them fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from codespec.errors import CodespecError, RequestError, ServeError, TokenizerError
from codespec.server.audit import Audit
from codespec.server.fair_queue import Scheduled, schedule
from codespec.server.handles import Failed, Message, Priority, RequestHandle, empty_completions
from codespec.server.jobs import Job, Jobs
from codespec.server.logs import log_failure
from codespec.server.prefetch import PrefetchCache, follow_up
from codespec.types import CompletionRequest, DoneEvent

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

Delivery = tuple[RequestHandle, Sequence[Message]]


class Dispatcher:
    """Starts, monitors and ends jobs; `outbox` collects the messages for their handles.

    With `prefetch` it continues each document's text if no request arrives for `patience` seconds; a request that
    arrives during a round waits for that round. After prefetching, it runs the audits that `audit` has queued.
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
        self._planned: list[tuple[float, CompletionRequest]] = []  # prefetches with their start times
        self.prefetched = PrefetchCache()
        self.audit = Audit(engine) if audit is None else audit
        self.rounds = 0
        self.outbox: list[Delivery] = []

    @property
    def idle_for(self) -> float | None:
        """Seconds until there is work to do without a new request, or None if there is none to come."""
        if self.jobs:
            return 0.0
        due = self._planned[0][0] if self._planned else self.audit.due
        return None if due is None else max(0.0, due - time.perf_counter())

    def admit(self, handle: RequestHandle) -> None:
        """Accept a request. End an older one for its document, and cancel prefetches that don't serve it."""
        self._interrupt_audit()
        superseded = self.jobs.supersede(handle)
        messages = self.prefetched.take(handle, time.perf_counter())
        if not messages:
            messages = self.jobs.add(handle).messages
        if messages:
            self._send([handle], messages)
        for older in superseded:
            self.abort(older)
            self._send([older], empty_completions(older.request, "cancelled"))
        self._planned.clear()
        for job in self.jobs.prefetches():
            self._cancel(job)
            self.jobs.end(job)
        if handle not in self.jobs:
            self.jobs.detach(handle)
            self._plan_prefetch(handle.request, messages)

    def abort(self, handle: RequestHandle) -> None:
        """Drop a request whose client is gone; cancel its job if no other request shares it."""
        job = self.jobs.detach(handle)
        if job is not None:
            self._cancel(job)

    def round(self) -> None:
        """Run one engine step for the scheduled choices."""
        self._expire()
        self._begin_planned()
        self._begin_audit()
        scheduled = self._schedule()
        if scheduled:
            self._step(scheduled)
        for job in list(self.jobs.running):
            self._collect(job)

    def refuse_all(self, error: CodespecError) -> None:
        """End all jobs with an error."""
        for job in self.jobs:
            self._send(self.jobs.end(job), [Failed(error)])

    def _expire(self) -> None:
        now = time.perf_counter()
        for job in list(self.jobs.waiting):
            if job.deadline is not None and now >= job.deadline:
                self._send(self.jobs.end(job), empty_completions(job.request, "deadline"))

    def _schedule(self) -> list[Scheduled]:
        """Return the choices for the next round. Start their jobs if necessary."""
        while True:
            scheduled = schedule(list(self.jobs), self.slots, self.rounds)
            waiting = [one.job for one in scheduled if not one.job.sequences]
            if not waiting:
                return scheduled
            for job in waiting:
                self._start(job)

    def _step(self, scheduled: Sequence[Scheduled]) -> None:
        jobs = list(dict.fromkeys(one.job for one in scheduled))
        self.rounds += 1
        for job in self.jobs:
            job.rounds_waited += job not in jobs
        try:
            self.engine.step([one.job.sequences[one.choice] for one in scheduled])
        except Exception as error:  # engine boundary: one request's fault must not end the others
            self._recover(jobs, error)

    def _start(self, job: Job) -> None:
        try:
            if job.audited:
                sequences = self.engine.submit_again(job.audited)
            else:
                sequences = self.engine.submit(job.request_at(time.perf_counter()))
        except TokenizerError as error:
            self._send(self.jobs.end(job), [Failed(RequestError(str(error), "prefix"))])
        except CodespecError as error:
            self._send(self.jobs.end(job), [Failed(error)])
        except Exception as error:  # engine boundary: only the request that can't be submitted ends
            self._fail(job, error)
        else:
            for sequence in sequences:
                sequence.listening = True
                sequence.started = min((handle.arrived for handle in job.handles), default=sequence.started)
            self.jobs.start(job, sequences)

    def _recover(self, failed: Sequence[Job], error: Exception) -> None:
        """Recover after a failed round: fail a job that ran alone; requeue several jobs to run one at a time."""
        for job in failed:
            self._cancel(job)
        if len(failed) == 1:
            self._fail(failed[0], error)
            return
        for job in failed:
            job.alone = True
            self.jobs.requeue(job)

    def _fail(self, job: Job, error: Exception) -> None:
        log_failure("a request failed in the engine", error)
        kind = type(error).__name__  # the exception's message may contain source text
        if job.audited:
            self.audit.give_up()
        sentence = f"The engine failed on this request ({kind}): the daemon goes on, other requests are not affected."
        self._send(self.jobs.end(job), [Failed(ServeError(sentence, 500))])

    def _collect(self, job: Job) -> None:
        events = job.read_events()
        if self._is_overdue(job):
            self._cancel(job)
            events += [_as_deadline(event) for event in job.read_events()]
        if events:
            self._send(job.handles, events)
        if job.finished:
            self.jobs.end(job)
            if job.audited:
                self.audit.judge(job)
            elif job.is_prefetch:
                self.prefetched.put(job.request, job.messages, time.perf_counter())
            else:
                self.audit.consider(job)
                if job.own_priority == Priority.INTERACTIVE and job.after_first_ms is None:
                    self._plan_prefetch(job.request, job.messages)

    def _plan_prefetch(self, request: CompletionRequest, messages: Sequence[Message]) -> None:
        """Plan to continue a finished text as if the user had accepted it."""
        upcoming = follow_up(request, messages) if self.prefetch else None
        if upcoming is not None:
            self._planned.append((time.perf_counter() + self.patience, upcoming))
            self._begin_planned()

    def _begin_planned(self) -> None:
        now = time.perf_counter()
        while self._planned and self._planned[0][0] <= now:
            self.jobs.add_prefetch(self._planned.pop(0)[1])

    def _begin_audit(self) -> None:
        """Start the next due audit if there is no other work."""
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
        """Return whether the time limit after the first token has passed and every choice has a complete line."""
        limit, now = job.after_first_ms, time.perf_counter()
        if limit is None or job.finished:
            return False
        if job.first_token is None and any(sequence.num_generated for sequence in job.sequences):
            job.first_token = now
        late = job.first_token is not None and now >= job.first_token + limit / 1000
        return late and all(b"\n" in sequence.generated[len(sequence.held) :] for sequence in job.sequences)

    def _cancel(self, job: Job) -> None:
        for sequence in job.sequences:
            self.engine.cancel(sequence)

    def _send(self, handles: Iterable[RequestHandle], messages: Sequence[Message]) -> None:
        self.outbox += [(handle, list(messages)) for handle in handles]


def _as_deadline(event: Message) -> Message:
    """Change the finish reason of a cancelled choice to "deadline", which is what its client sees."""
    if not isinstance(event, DoneEvent) or event.completion.finish_reason != "cancelled":
        return event
    return replace(event, completion=replace(event.completion, finish_reason="deadline"))
