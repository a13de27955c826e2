"""Serve many requests with one target model and its proposers, one step at a time.

A round has seven stages: schedule, propose, retokenize, trim, verify, accept and commit. This module defines the order
of the stages, which other modules implement. An engine is not thread-safe: only one thread may call its methods.
"""

from __future__ import annotations

import collections.abc
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec.api.config import EngineConfig
from codespec.api.types import Completion, CompletionRequest, Event, FinishReason, Mode, Owner
from codespec.backends.language_model import CacheUse, LanguageModel, SlotPool
from codespec.engine.admission import Admission
from codespec.engine.job import Job
from codespec.engine.metrics import Metrics, RoundRecord
from codespec.engine.queue import Queue, share_rows
from codespec.engine.round import commit, completion_of, conclude, first_drafts, keep_drawn, to_candidates
from codespec.proposers.base import Proposer
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.lookup import SuffixProposer
from codespec.sequence import Draft, Sequence, Verdict
from codespec.speculation.policy import DraftPlan, DraftPolicy, StepResults
from codespec.startup.parts import load_parts, prepare
from codespec.startup.tuning import ReadingSpeed
from codespec.store.choice import resolve_engine
from codespec.store.resolve import PairFiles
from codespec.verify.verifier import Turn, Verifier

if TYPE_CHECKING:
    from codespec.backends.heads.checkpoint import LoadedHead

Tell = Callable[[str], None]


class Engine:
    """Completes requests with a target model, sped up by the drafts of `proposers`, which are asked in order."""

    def __init__(
        self,
        target: LanguageModel,
        proposers: collections.abc.Sequence[Proposer],
        policy: DraftPolicy,
        *,
        caps: Mapping[str, int] | None = None,  # maximum draft length by `language.class`, else by class
        context: int,  # maximum number of target tokens of a request's prompt and completion together
        prompt_budget: int = 0,  # maximum number of target tokens of an editor prompt (0: `context`)
        reading: ReadingSpeed | None = None,
        max_batch: int = 8,  # maximum number of sequences in a step; the other sequences wait in `queue`
        slots: int = 0,  # of the target's cache (0: `max_batch`); slots beyond `max_batch` keep texts cached
        prefill_chunk: int = 256,  # maximum number of tokens that a step prefills, of all prompts together
        warmup: int = 0,  # shorter texts, in tokens, get no drafts
        speculate: bool = True,
        notes: list[str] | None = None,
    ) -> None:
        self.target = target
        self.proposers = tuple(proposers)
        self.policy = policy
        self.caps = caps or {}
        self.warmup = warmup
        self.speculate = speculate
        self.notes = [] if notes is None else notes  # shared with the policy, which may append
        self.metrics = Metrics()
        self.context = context
        self.prompt_budget = prompt_budget or context
        self._admission = Admission(target, context, self.prompt_budget, reading)
        self.max_batch = max_batch
        self.queue = Queue(max_batch, self._finish)
        self.prefill_chunk = prefill_chunk
        self._batch = Batch(target, slots or max_batch)
        self._verifier = Verifier(target)

    @property
    def mode(self) -> Mode:
        """The effective mode, exact or fast; `notes` gives the reason if the mode differs from the configured one."""
        return "exact" if self.target.exact else "fast"

    @property
    def variance(self) -> str:
        """The reason why the configured exact mode does not hold, or "" if exact mode holds or was not requested."""
        return self.target.variance

    @property
    def kernel(self) -> str:
        """The name of the kernels that compute the target's matrix products, or "" for the kernels of torch."""
        return self.target.kernel

    @property
    def caches(self) -> dict[str, CacheUse]:
        """Usage of the target's and the drafter's caches, which any thread may read."""
        found = {"target": CacheUse.of(self._batch.pool, self.target.cache)}
        if drafter := self._drafter:
            found["drafter"] = CacheUse.of(drafter.slots, drafter.model.cache)
        return found

    @property
    def _drafter(self) -> DraftModel | None:
        return next((each for each in self.proposers if isinstance(each, DraftModel)), None)

    @classmethod
    def load(cls, **settings: Any) -> Engine:
        """Load a target and a drafter with settings of `EngineConfig`. `drafter=None` means no drafter.

        Settings that are not given come from CODESPEC_* environment variables, or else from the user's configuration
        file, as in every command. Raises ConfigError if a setting is unknown.
        """
        values = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
        if "drafter" in values and values["drafter"] is None:
            values["drafter"] = "none"
        return cls.build(resolve_engine(values))

    @classmethod
    def build(cls, config: EngineConfig, tell: Tell = lambda phase: None, pair: PairFiles | None = None) -> Engine:
        """Load the configured models, whose files may be open in `pair`; report each loading phase to `tell`."""
        return cls(**load_parts(config, tell, pair))

    @classmethod
    def assemble(
        cls, target: LanguageModel, drafter: LanguageModel | None, config: EngineConfig, head: LoadedHead | None = None
    ) -> Engine:
        """Build an engine from loaded models. With a head, the target must already record its hidden states."""
        return cls(**prepare(target, drafter, config, lambda phase: None, head))

    def complete(self, requests: collections.abc.Sequence[CompletionRequest]) -> list[Completion]:
        """Complete all requests as a batch. Return one Completion per request, with further choices as alternatives."""
        jobs = [self._admit(request, listening=False) for request in requests]  # all are admitted before any is queued
        for job in jobs:
            self.queue.add(job)
        try:
            while not all(job.finished for job in jobs):
                self.step()
        finally:
            for job in jobs:
                self.queue.end(job)
        done = [[completion_of(sequence) for sequence in job.sequences] for job in jobs]
        return [replace(choices[0], alternatives=tuple(choices[1:])) for choices in done]

    def stream(self, request: CompletionRequest) -> collections.abc.Iterator[Event]:
        """Complete one request and yield its events after each round. Closing the iterator cancels the request."""
        job = self._admit(request, listening=True)
        self.queue.add(job)
        try:
            while not job.finished:
                self.step()
                yield from job.read_events()
            yield from job.read_events()  # if it ended in another caller's step
        finally:
            self.queue.end(job)

    def submit(self, request: CompletionRequest) -> list[Sequence]:
        """Queue a request and return one sequence per choice. Raises RequestError if the request is invalid."""
        job = self._admit(request, listening=False)
        self.queue.add(job)
        return job.sequences

    def start(self, job: Job) -> None:
        """Create the sequences of a waiting job. Raises RequestError if the job's request is invalid."""
        began = time.perf_counter()
        sequences = self._admission.admit(job.request)
        for sequence in sequences:
            sequence.stats.admit_ms = (time.perf_counter() - began) * 1000
            sequence.started, sequence.listening = job.arrived, job.listening
        if drafter := self._drafter:
            drafter.check(job.request, sequences[0].length_limit)
        job.sequences = sequences

    def look_up_in(self, owner: Owner, files: collections.abc.Sequence[bytes]) -> None:
        """Set the files from which drafts for this owner's texts may be copied, replacing the previous files."""
        for proposer in self.proposers:
            if isinstance(proposer, SuffixProposer):
                proposer.look_up_in(owner, files)

    def _admit(self, request: CompletionRequest, listening: bool) -> Job:
        job = Job(request, arrived=time.perf_counter(), listening=listening)
        self.start(job)
        return job

    def close(self) -> None:
        """Save the learned state; the engine remains usable."""
        self.policy.close()

    def step(self, chosen: collections.abc.Collection[Sequence] | None = None) -> None:
        """Run one round for the `chosen` sequences (None: the queue chooses them).

        All other sequences pause and release their slots. A pause does not change a text, and nothing is recomputed
        after a pause unless another sequence has taken the slot.
        """
        if chosen is None:
            chosen = self.queue.next_round(time.perf_counter(), self.start)
        going = [sequence for sequence in chosen if sequence.finish_reason is None]
        self._seat(going)
        share_rows(going, self.prefill_chunk)
        fed = [sequence for sequence in going if sequence.feed]
        if fed:
            self._round(fed)
        self._read_ahead()

    def _seat(self, chosen: list[Sequence]) -> None:
        """Release the slots of running sequences that are not chosen, and give each chosen sequence a slot."""
        for sequence in [running for running in self._batch.running if running not in chosen]:
            self._batch.leave(sequence)
            sequence.slot, sequence.cached = -1, 0
            self._release(sequence, None)
        drafter = self._drafter
        for sequence in chosen:
            if sequence not in self._batch.running:
                self._batch.enter(sequence)
                if drafter and not drafter.slots.holds(sequence.request.owner):
                    sequence.outlook.read_by.setdefault(drafter.name, 0)

    def _round(self, sequences: list[Sequence]) -> None:
        """Run a round of speculative decoding (Leviathan et al. 2023); sequences in prefill have no draft."""
        record = RoundRecord()
        with record.timed("schedule"):
            plan = self._plan(sequences)
        with record.timed("propose"):
            drafts = first_drafts(self.proposers, sequences, plan.caps)
        with record.timed("retokenize"):
            proposed = to_candidates(self.target.tokenizer, sequences, drafts, plan.caps)
            candidates = keep_drawn(proposed, plan.trim(proposed))
            turns = [Turn(sequence, sequence.feed, own) for sequence, own in zip(sequences, candidates, strict=True)]
        with record.timed("verify"):
            verdicts = self._verifier.verify(turns)
        with record.timed("commit"):
            tokens = [self._commit(*turn) for turn in zip(turns, verdicts, drafts, strict=True)]
        rounds = [(t.sequence, t.candidates, v) for t, v in zip(turns, verdicts, strict=True) if v is not None]
        self.policy.observe(StepResults(rounds, record.propose, record.verify))
        self._book(record, turns, tokens)

    def _plan(self, sequences: list[Sequence]) -> DraftPlan:
        """Return the policy's plan, with caps lowered to the user's caps and to the tokens that requests still need."""
        for sequence in sequences:
            decides = sequence.feed == sequence.num_pending and len(sequence.ids) >= self.warmup
            # The target adds one token to each draft.
            sequence.room = max(0, sequence.remaining - 1) if decides and self._speculates(sequence) else 0
            if self.caps and sequence.room:
                sequence.room = min(sequence.room, self._cap(sequence))
        plan = self.policy.plan(sequences)
        caps = [
            cap if cap.tokens <= sequence.room else replace(cap, tokens=sequence.room)
            for sequence, cap in zip(sequences, plan.caps, strict=True)
        ]
        return replace(plan, caps=caps)

    def _cap(self, sequence: Sequence) -> int:
        sequence.follow_syntax()
        context, language = sequence.outlook.context, sequence.outlook.language
        return self.caps.get(f"{language}.{context}", self.caps.get(context, sequence.room))

    def _commit(self, turn: Turn, verdict: Verdict | None, draft: Draft) -> int:
        if verdict is None:
            return 0
        taken = commit(turn.sequence, turn.candidates, verdict, draft, self.target.token_bytes)
        self.metrics.count_round(turn.sequence, turn.candidates, taken)
        return len(taken.committed)

    def _speculates(self, sequence: Sequence) -> bool:
        wanted = sequence.request.speculate
        return bool(self.proposers) and (self.speculate if wanted is None else wanted)

    def _read_ahead(self) -> None:
        """Prefill the proposers for warm-ups that the target has read, a chunk per step; end complete warm-ups."""
        for sequence in [s for s in self._batch.running if s.only_reads and not s.num_wanted]:
            if not (self._speculates(sequence) and any([each.commit(sequence) for each in self.proposers])):
                self._finish(sequence, "length")

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence in self._batch.running:
            self._batch.leave(sequence)
        self._release(sequence, reason)
        sequence.stats.total_ms = (time.perf_counter() - sequence.started) * 1000
        conclude(sequence, reason)
        self.metrics.count_end(sequence.stats)

    def _release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        for proposer in self.proposers:
            proposer.release(sequence, reason)

    def _book(self, record: RoundRecord, turns: list[Turn], tokens: list[int]) -> None:
        """Add the round to the metrics and to each sequence's stats, and finish the sequences that ended."""
        record.tokens = sum(tokens)
        record.prefilled = sum(turn.feed for turn in turns if turn.sequence.stats.rounds <= 1)
        reading = sum(turn.feed for turn in turns if turn.feed > 1)
        record.prompt_share = reading / sum(turn.feed + len(turn.candidates.ids) for turn in turns)
        record.context = sum(turn.sequence.outlook.seconds for turn in turns)
        length = sum(len(turn.sequence.ids) for turn in turns) / len(turns)
        plain = 0.0 if reading else self.policy.seconds(len(turns), len(turns), length)  # 0 also if unknown
        record.plain = plain * record.tokens / len(turns)
        self.metrics.count_step(record)
        for turn, count in zip(turns, tokens, strict=True):
            record.add_to(turn.sequence.stats, prompt=turn.feed > 1)
            turn.sequence.stats.context_ms += turn.sequence.outlook.seconds * 1000
            turn.sequence.outlook.seconds = 0.0
            if plain:
                turn.sequence.stats.decode_ms += record.total * 1000
                turn.sequence.stats.plain_ms += plain * count * 1000
            if turn.sequence.finish_reason:
                self._finish(turn.sequence, turn.sequence.finish_reason)


class Batch:
    """The running sequences, each in its own slot of the target's cache."""

    def __init__(self, target: LanguageModel, slots: int) -> None:
        self.target = target
        self.running: list[Sequence] = []
        self.pool = SlotPool(slots, target.resumable)

    def enter(self, sequence: Sequence) -> None:
        """Assign a slot to a sequence, at its start or after a pause."""
        parent, shared = sequence.parent, len(sequence.prompt_ids) - 1
        lease = self.pool.acquire(sequence.ids, self._rotary_key(sequence), sequence.request.owner)
        source, cached = lease.source, min(lease.shared, len(sequence.ids) - 1)  # the last id yields logits
        cached = self.target.resumable(source, cached)
        if parent is not None and parent in self.running and parent.cached >= shared > cached:
            copied = self.target.resumable(parent.slot, shared)
            source, cached = (parent.slot, copied) if copied > cached else (source, cached)
        sequence.slot, sequence.cached = lease.slot, cached
        self.running.append(sequence)  # before the model calls, so that cleanup works if they fail
        if source != lease.slot and cached:
            self.target.fork(source, lease.slot, cached)
        self.target.admit(lease.slot, sequence.length_limit, cached)
        self.target.keep_for_later(lease.slot, sequence.prompt_ids, shared if sequence.request.n > 1 else 0)
        if not sequence.had_slot:
            sequence.had_slot = True
            sequence.stats.cached_tokens = cached
            sequence.stats.queue_ms = (time.perf_counter() - sequence.started) * 1000

    def leave(self, sequence: Sequence) -> None:
        """Release a sequence's slot, whose keys and values remain available to requests with the same prefix."""
        self.running.remove(sequence)
        length = self.target.resume(sequence.slot, min(sequence.cached, len(sequence.ids)))
        self.pool.release(sequence.slot, sequence.ids[:length], self._rotary_key(sequence))

    def _rotary_key(self, sequence: Sequence) -> int:
        return self.target.rotary_key(sequence.length_limit)
