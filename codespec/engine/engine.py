"""The engine: many requests, one target, a proposer, one step at a time.

One step is schedule → caps → propose → retokenize → trim → verify → commit. Knows requests and the order of things; the
parts know how. Not thread-safe: one thread calls it.
"""

from __future__ import annotations

import collections.abc
import time
from dataclasses import replace
from typing import Any

from codespec.engine.admission import Admission, demand_shared
from codespec.engine.candidates import keep_drawn, to_candidates
from codespec.engine.commit import commit, completion_of, conclude
from codespec.engine.metrics import Laps, Metrics
from codespec.engine.scheduler import Scheduler
from codespec.models.call_shape import FAST
from codespec.models.language_model import LanguageModel
from codespec.models.slots import CacheUse
from codespec.proposers.base import NOTHING, Proposer
from codespec.proposers.chain import ChainProposer
from codespec.proposers.draft_model import DraftModel
from codespec.sequence import Candidates, Draft, Sequence, Verdict
from codespec.speculation.policy import DraftLengthPolicy
from codespec.types import Completion, CompletionRequest, Event, FinishReason, Mode
from codespec.verify.acceptance import AcceptanceRule, MatchRule
from codespec.verify.verifier import Turn, Verifier


class Engine:
    """Completes requests with a target and, if it has a proposer, sooner. The target has `slots` in its cache: as many
    as requests run at once (0), or more, so that what was completed lately stays warm.
    """

    def __init__(
        self,
        target: LanguageModel,
        proposer: Proposer | None,
        policy: DraftLengthPolicy,
        *,
        context: int,
        prompt_budget: int = 0,
        max_batch: int = 8,
        slots: int = 0,
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
        self._admission = Admission(target, context, prompt_budget)
        self._scheduler = Scheduler(target, max_batch, prefill_chunk, slots or max_batch)
        self._verifier = Verifier(target, rule or MatchRule())

    @property
    def max_batch(self) -> int:
        """Requests that run at once."""
        return self._scheduler.max_batch

    @property
    def context(self) -> int:
        """Target tokens of a request, prompt and completion together."""
        return self._admission.context

    @property
    def prompt_budget(self) -> int:
        """Target tokens of a prompt in an editor, at most."""
        return self._admission.budget

    @property
    def mode(self) -> Mode:
        """The mode in effect, which may be another than the configured one; `notes` say why."""
        return "exact" if self.target.exact else "fast"

    def leave_exact(self, reason: str) -> None:
        """Goes on in fast mode, where exact mode turned out not to hold."""
        if self.target.exact:
            self.target.exact = False
            self.target.use(FAST)
            self.notes.append(f"exact mode does not hold here ({reason}): fast mode is used, near-ties may differ")

    @property
    def caches(self) -> dict[str, CacheUse]:
        """What the caches of target and drafter hold; may be read from another thread."""
        found = {"target": CacheUse.of(self._scheduler.pool, self.target.cache)}
        for drafter in self._drafters:
            found["drafter"] = CacheUse.of(drafter.slots, drafter.model.cache)
        return found

    @property
    def _drafters(self) -> list[DraftModel]:
        parts = self.proposer.proposers if isinstance(self.proposer, ChainProposer) else (self.proposer,)
        return [part for part in parts if isinstance(part, DraftModel)]

    @classmethod
    def load(cls, **settings: Any) -> Engine:
        """Loads target and drafter by the settings of `EngineConfig`; `drafter=None` means no drafter."""
        from codespec.engine.load import load_engine

        return load_engine(settings)

    def complete(self, requests: collections.abc.Sequence[CompletionRequest]) -> list[Completion]:
        """Completes all requests together; one Completion each, its alternatives inside."""
        choices = [self._admit(request) for request in requests]  # all or none is queued
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
        sequences = self._admit(request)
        self._queue(sequences, request)
        return sequences

    def submit_again(self, finished: list[Sequence]) -> list[Sequence]:
        """Queues the choices of a finished request once more, to be decoded plainly and compared: nothing is drafted
        or learned, and no request counts it. Prompts are read from the cache where that holds them.
        """
        sequences = self._admission.repeat(finished)
        self._queue(sequences, sequences[0].request)
        return sequences

    def _admit(self, request: CompletionRequest) -> list[Sequence]:
        began = time.perf_counter()
        sequences = self._admission.admit(request)
        for sequence in sequences:
            sequence.stats.admit_ms = (time.perf_counter() - began) * 1000
        if request.rule == "rejection":
            demand_shared(self._drafters, sequences[0].length_limit)
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

    def step(self, only: collections.abc.Collection[Sequence] | None = None) -> None:
        """One round for everything that is under way, or for some `only`: the others pause and need no slots. A pause
        changes no text; going on computes nothing again unless somebody else took the slot.
        """
        self._expire()
        if only is not None:
            self._pause([sequence for sequence in self._scheduler.running if sequence not in only])
        scheduled = self._scheduler.schedule(only)
        if scheduled:
            self._round(scheduled)
        self._read_ahead()

    def _pause(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._scheduler.pause(sequence)
            for drafter in self._drafters:
                drafter.release(sequence)

    def _round(self, scheduled: list[tuple[Sequence, int]]) -> None:
        """Prompts are read, and who has read writes."""
        laps = Laps()
        sequences = [sequence for sequence, _ in scheduled]
        self._prepare(scheduled)
        drafts, candidates = self._draft(sequences, laps)
        turns = [Turn(s, feed, c) for (s, feed), c in zip(scheduled, candidates, strict=True)]
        verdicts = self._verifier.verify(turns)
        laps.verify = laps.split()
        tokens = [self._commit(*turn) for turn in zip(turns, verdicts, drafts, strict=True)]
        laps.rest += laps.split()
        self._book(turns, tokens, laps)
        for sequence in sequences:
            if sequence.finish_reason:
                self._finish(sequence, sequence.finish_reason)

    def _draft(self, sequences: list[Sequence], laps: Laps) -> tuple[list[Draft], list[Candidates]]:
        """What is guessed of each text, and what of it is verified. Among audits alone nobody is asked: being asked
        is something that a policy learns from.
        """
        if all(sequence.audit for sequence in sequences):
            return [NOTHING] * len(sequences), [Candidates()] * len(sequences)
        wanted = self.policy.caps(sequences)
        caps = [
            cap if cap.tokens <= s.room else replace(cap, tokens=s.room)
            for s, cap in zip(sequences, wanted, strict=True)
        ]
        laps.rest += laps.split()
        drafts = self.proposer.propose(sequences, caps) if self.proposer else [NOTHING] * len(sequences)
        laps.draft = laps.split()
        proposed = to_candidates(self.target.tokenizer, sequences, drafts, caps)
        candidates = keep_drawn(proposed, self.policy.trim(sequences, proposed))
        laps.retokenize = laps.split()
        return drafts, candidates

    def _commit(self, turn: Turn, verdict: Verdict | None, draft: Draft) -> int:
        """Writes what the target chose and tells those who learn from it; returns how many tokens it was."""
        if verdict is None:
            return 0
        taken = commit(turn.sequence, turn.candidates, verdict, draft, self.target.token_bytes)
        if turn.sequence.audit:
            return 0
        self.metrics.count_round(turn.sequence, turn.candidates, taken)
        self.policy.observe(turn.sequence, turn.candidates, verdict)
        if self.proposer:
            self.proposer.commit(turn.sequence)
        return len(taken.committed)

    def _prepare(self, scheduled: list[tuple[Sequence, int]]) -> None:
        """Tells each sequence what it feeds and how much may be drafted: nothing while it prefills or has too little
        context, and never more than the request still needs beside its bonus token.
        """
        for sequence, feed in scheduled:
            ready = self._speculates(sequence) and feed == sequence.num_pending and len(sequence.ids) >= self.warmup
            sequence.feed = feed
            sequence.room = max(0, sequence.remaining - 1) if ready else 0
            for drafter in () if sequence.num_generated else self._drafters:
                if drafter.slots.holds(sequence.request.owner):  # so it has read about as much as the target
                    sequence.outlook.read_by.setdefault(drafter.name, sequence.stats.cached_tokens)

    def _speculates(self, sequence: Sequence) -> bool:
        asked = sequence.request.speculate
        return bool(self.proposer) and (self.speculate if asked is None else asked)

    def _read_ahead(self) -> None:
        """A warm-up that the target has read is read by the proposer too, a piece a step; then it is over."""
        for sequence in [s for s in self._scheduler.running if s.only_reads and not s.num_wanted]:
            if self.proposer is None or not (self._speculates(sequence) and self.proposer.read(sequence)):
                self._finish(sequence, "length")

    def _expire(self) -> None:
        now = time.perf_counter()
        for sequence in [*self._scheduler.running, *self._scheduler.waiting]:
            if sequence.ending and sequence.ending.idle:
                self._finish(sequence, "stop")  # before the target does anything for it
            elif sequence.deadline is not None and now >= sequence.deadline:
                self._finish(sequence, "deadline")

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._scheduler.remove(sequence)
        if self.proposer and not sequence.audit:
            self.proposer.release(sequence)
        sequence.stats.total_ms = (time.perf_counter() - sequence.started) * 1000
        conclude(sequence, reason)
        if not sequence.audit:
            self.metrics.count_end(sequence.stats)

    def _book(self, turns: list[Turn], tokens: list[int], laps: Laps) -> None:
        laps.context = sum(turn.sequence.outlook.seconds for turn in turns)
        laps.tokens, laps.prefilled = sum(tokens), sum(turn.feed for turn in turns if turn.sequence.stats.rounds <= 1)
        reading = sum(turn.feed for turn in turns if turn.feed > 1)
        laps.reading = reading / sum(turn.feed + len(turn.candidates.ids) for turn in turns)
        plain = 0.0 if reading else self._plain_round(turns)
        laps.plain = plain * laps.tokens / len(turns)
        self.metrics.count_step(laps)
        for turn, count in zip(turns, tokens, strict=True):
            stats = turn.sequence.stats
            if plain:
                stats.decode_ms += laps.total * 1000
                stats.plain_ms += plain * count * 1000
            stats.draft_ms += laps.draft * 1000
            stats.retokenize_ms += laps.retokenize * 1000
            stats.context_ms += turn.sequence.outlook.seconds * 1000
            turn.sequence.outlook.seconds = 0.0
            stats.other_ms += laps.rest * 1000
            if turn.feed > 1:
                stats.prefill_ms += laps.verify * 1000
            else:
                stats.verify_ms += laps.verify * 1000

    def _plain_round(self, turns: list[Turn]) -> float:
        """Seconds in which plain decoding would have written one token of each; 0 where no cost table says."""
        costs = self.policy.costs
        length = sum(len(turn.sequence.ids) for turn in turns) / len(turns)
        return costs.plain(len(turns), length) if costs else 0.0
