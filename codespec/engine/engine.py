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
from codespec.engine.commit import commit, completion_of, conclude
from codespec.engine.metrics import Laps, Metrics
from codespec.engine.scheduler import Scheduler
from codespec.models.language_model import LanguageModel
from codespec.proposers.base import NOTHING, Proposer
from codespec.sequence import Candidates, Cap, Draft, Sequence
from codespec.text.align import retokenize_batch
from codespec.types import Completion, CompletionRequest, Event, FinishReason
from codespec.verify.acceptance import AcceptanceRule, MatchRule
from codespec.verify.verifier import Turn, Verifier

WINDOW = 64  # bytes of committed text that a draft is encoded behind


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
        notes: collections.abc.Sequence[str] = (),
    ) -> None:
        self.target = target
        self.proposer = proposer
        self.policy = policy
        self.warmup = warmup
        self.speculate = speculate
        self.notes = tuple(notes)
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

    def step(self) -> None:
        """One round for everything that is under way."""
        laps = Laps()
        self._expire()
        scheduled = self._scheduler.schedule()
        if not scheduled:
            return
        sequences = [sequence for sequence, _ in scheduled]
        caps = self._caps(scheduled)
        laps.rest += laps.split()
        drafts = self.proposer.propose(sequences, caps) if self.proposer else [NOTHING] * len(sequences)
        laps.draft = laps.split()
        candidates = self.policy.trim(self._retokenize(sequences, drafts, caps))
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

    def _caps(self, scheduled: list[tuple[Sequence, int]]) -> list[Cap]:
        """The policy's caps, 0 where nothing may be drafted; never more than the request still needs beside its
        bonus.
        """
        wanted = self.policy.caps([sequence for sequence, _ in scheduled])
        caps = []
        for (sequence, feed), cap in zip(scheduled, wanted, strict=True):
            asked = sequence.request.speculate
            on = self.speculate if asked is None else asked
            ready = on and feed == sequence.num_pending and len(sequence.ids) >= self.warmup
            room = min(sequence.remaining - 1, cap.tokens) if ready and self.proposer else 0
            caps.append(Cap(max(0, room), cap.min_confidence))
        return caps

    def _retokenize(self, sequences: list[Sequence], drafts: list[Draft], caps: list[Cap]) -> list[Candidates]:
        """Drafts in the target's tokens, cut to the caps; one batched encoding for all of them."""
        spelled = [i for i, draft in enumerate(drafts) if draft.text and draft.ids is None]
        pairs = [(sequences[i].window(WINDOW), drafts[i].text) for i in spelled]
        encoded = dict(zip(spelled, retokenize_batch(self.target.tokenizer, pairs) if pairs else [], strict=True))
        result = []
        for i, (draft, cap) in enumerate(zip(drafts, caps, strict=True)):
            ids = tuple(draft.ids if draft.ids is not None else encoded.get(i, ()))
            reason = "cap" if len(ids) > cap.tokens else "draft ended"
            result.append(Candidates(ids[: cap.tokens], draft.source, reason) if ids else Candidates())
        return result

    def _expire(self) -> None:
        now = time.perf_counter()
        for sequence in [*self._scheduler.running, *self._scheduler.waiting]:
            if sequence.deadline is not None and now >= sequence.deadline:
                self._finish(sequence, "deadline")

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._scheduler.remove(sequence)
        if self.proposer:
            self.proposer.release(sequence)
        sequence.stats.total_ms = (time.perf_counter() - sequence.started) * 1000
        conclude(sequence, reason)
        self.metrics.totals.add(sequence.stats)

    def _book(self, turns: list[Turn], laps: Laps) -> None:
        self.metrics.count(laps)
        for turn in turns:
            stats = turn.sequence.stats
            stats.draft_ms += laps.draft * 1000
            stats.retokenize_ms += laps.retokenize * 1000
            stats.other_ms += laps.rest * 1000
            if turn.feed > 1:
                stats.prefill_ms += laps.verify * 1000
            else:
                stats.verify_ms += laps.verify * 1000
