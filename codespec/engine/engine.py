"""The engine: many requests, one target, a proposer, one step at a time.

One step is schedule → caps → propose → retokenize → trim → verify → commit. Knows requests and the order of things; the
parts know how. Not thread-safe: one thread calls it.
"""

from __future__ import annotations

import collections.abc
import time
from dataclasses import replace
from typing import Any

from codespec.control.draft_length import DraftLengthPolicy
from codespec.engine.admission import Admission
from codespec.engine.candidates import to_candidates
from codespec.engine.commit import commit, completion_of, conclude
from codespec.engine.metrics import Laps, Metrics
from codespec.engine.scheduler import Scheduler
from codespec.models.language_model import LanguageModel
from codespec.proposers.base import NOTHING, Proposer
from codespec.sequence import Sequence
from codespec.types import Completion, CompletionRequest, Event, FinishReason
from codespec.verify.acceptance import AcceptanceRule, MatchRule
from codespec.verify.verifier import Turn, Verifier


class Engine:
    """Completes requests with a target and, if it has a proposer, sooner."""

    def __init__(
        self,
        target: LanguageModel,
        proposer: Proposer | None,
        policy: DraftLengthPolicy,
        *,
        context: int,
        max_batch: int = 8,
        prefill_chunk: int = 256,
        warmup: int = 100,
        speculate: bool = True,
        rule: AcceptanceRule | None = None,
        notes: list[str] | None = None,
    ) -> None:
        self.target = target
        self.proposer = proposer
        self.policy = policy
        self.warmup = warmup
        self.speculate = speculate
        self.notes = [] if notes is None else notes  # the policy may add to them
        self.metrics = Metrics()
        self._admission = Admission(target, context)
        self._scheduler = Scheduler(target, max_batch, prefill_chunk)
        self._verifier = Verifier(target, rule or MatchRule())

    @classmethod
    def load(cls, **settings: Any) -> Engine:
        """Loads target and drafter by the settings of `EngineConfig`; `drafter=None` means no drafter."""
        from codespec.engine.load import load_engine

        return load_engine(settings)

    def complete(self, requests: collections.abc.Sequence[CompletionRequest]) -> list[Completion]:
        """Completes all requests together; one Completion each, its alternatives inside."""
        choices = [self._admission.admit(request) for request in requests]  # all or none is queued
        for group, request in zip(choices, requests, strict=True):
            self._queue(group, request)
        try:
            while not all(s.finish_reason for group in choices for s in group):
                self.step()
        finally:
            for group in choices:
                for sequence in group:
                    self.cancel(sequence)
        done = [[completion_of(sequence) for sequence in group] for group in choices]
        return [replace(group[0], alternatives=tuple(group[1:])) for group in done]

    def stream(self, request: CompletionRequest) -> collections.abc.Iterator[Event]:
        """Completes one request, yielding pieces of text and rounds as they are committed. Closing it cancels."""
        sequences = self.submit(request)
        for sequence in sequences:
            sequence.listening = True
        try:
            while not all(sequence.finish_reason for sequence in sequences):
                self.step()
                for sequence in sequences:
                    yield from sequence.events
                    sequence.events.clear()
        finally:
            for sequence in sequences:
                self.cancel(sequence)

    def submit(self, request: CompletionRequest) -> list[Sequence]:
        """Queues a request; one sequence a choice. Raises RequestError if it can't be served."""
        sequences = self._admission.admit(request)
        self._queue(sequences, request)
        return sequences

    def _queue(self, sequences: list[Sequence], request: CompletionRequest) -> None:
        now = time.perf_counter()
        for sequence in sequences:
            sequence.started = now
            if request.deadline_ms is not None:
                sequence.deadline = now + request.deadline_ms / 1000
            self._scheduler.add(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Ends a sequence before the next step; nothing happens if it is over."""
        if sequence.finish_reason is None:
            self._finish(sequence, "cancelled")

    def close(self) -> None:
        """Keeps what was learned; the engine may go on."""
        self.policy.close()

    def step(self) -> None:
        """One round for everything that is under way."""
        laps = Laps()
        self._expire()
        scheduled = self._scheduler.schedule()
        if not scheduled:
            return
        sequences = [sequence for sequence, _ in scheduled]
        self._prepare(scheduled)
        wanted = self.policy.caps(sequences)
        caps = [replace(cap, tokens=min(s.room, cap.tokens)) for s, cap in zip(sequences, wanted, strict=True)]
        laps.rest += laps.split()
        drafts = self.proposer.propose(sequences, caps) if self.proposer else [NOTHING] * len(sequences)
        laps.draft = laps.split()
        candidates = self.policy.trim(sequences, to_candidates(self.target.tokenizer, sequences, drafts, caps))
        laps.retokenize = laps.split()
        turns = [Turn(s, feed, c) for (s, feed), c in zip(scheduled, candidates, strict=True)]
        verdicts = self._verifier.verify(turns)
        laps.verify = laps.split()
        for turn, verdict, draft in zip(turns, verdicts, drafts, strict=True):
            if verdict is not None:
                commit(turn.sequence, turn.candidates, verdict, draft, self.target.token_bytes)
                self.policy.observe(turn.sequence, turn.candidates, verdict)
                if self.proposer:
                    self.proposer.commit(turn.sequence)
        laps.rest += laps.split()
        self._book(turns, laps)
        for sequence in sequences:
            if sequence.finish_reason:
                self._finish(sequence, sequence.finish_reason)

    def _prepare(self, scheduled: list[tuple[Sequence, int]]) -> None:
        """Tells each sequence what it feeds and how much may be drafted: nothing while it prefills or has too little
        context, and never more than the request still needs beside its bonus token.
        """
        for sequence, feed in scheduled:
            asked = sequence.request.speculate
            on = bool(self.proposer) and (self.speculate if asked is None else asked)
            ready = on and feed == sequence.num_pending and len(sequence.ids) >= self.warmup
            sequence.feed = feed
            sequence.room = max(0, sequence.remaining - 1) if ready else 0

    def _expire(self) -> None:
        now = time.perf_counter()
        for sequence in [*self._scheduler.running, *self._scheduler.waiting]:
            if sequence.ending and sequence.ending.idle:
                self._finish(sequence, "stop")  # before the target does anything for it
            elif sequence.deadline is not None and now >= sequence.deadline:
                self._finish(sequence, "deadline")

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._scheduler.remove(sequence)
        if self.proposer:
            self.proposer.release(sequence)
        sequence.stats.total_ms = (time.perf_counter() - sequence.started) * 1000
        conclude(sequence, reason)
        self.metrics.totals.add(sequence.stats)

    def _book(self, turns: list[Turn], laps: Laps) -> None:
        laps.context = sum(turn.sequence.outlook.seconds for turn in turns)
        self.metrics.count(laps)
        for turn in turns:
            stats = turn.sequence.stats
            stats.draft_ms += laps.draft * 1000
            stats.retokenize_ms += laps.retokenize * 1000
            stats.context_ms += turn.sequence.outlook.seconds * 1000
            turn.sequence.outlook.seconds = 0.0
            stats.other_ms += laps.rest * 1000
            if turn.feed > 1:
                stats.prefill_ms += laps.verify * 1000
            else:
                stats.verify_ms += laps.verify * 1000
