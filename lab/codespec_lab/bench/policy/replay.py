"""Replay recorded completions under any policy: the real engine, policy and retokenization, with a target and proposers
that only repeat the recording.

The result is the rounds and the work in each step. No time is measured; steps are priced with a cost table elsewhere.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from codespec.api.types import FinishReason
from codespec.backends.language_model import LanguageModel, Rows
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from codespec.proposers.base import NOTHING, Proposer
from codespec.proposers.draft_model import MAX_UNITS_A_TOKEN, REFILL, DraftModel
from codespec.proposers.lookup import SuffixProposer
from codespec.sequence import Cap, Draft, Sequence
from codespec.speculation.policy import DraftPlan, DraftPolicy, StepResults
from codespec.startup.tuning import USUAL_CHUNK
from codespec_lab.bench.harness import refuse_mismatches
from codespec_lab.bench.pair import Pair
from codespec_lab.bench.policy.recording import Recording, cut_lookup
from codespec_lab.bench.steps import Step, WatchedPolicy


@dataclass(frozen=True, slots=True)
class Round:
    """One sequence's share of a step: its position (tokens written so far) at the start, and its counts."""

    recording: Recording
    position: int
    source: str
    drafted: int
    accepted: int
    committed: int


@dataclass(slots=True)
class ReplayedStep(Step):
    """A step with its rounds."""

    rounds: list[Round] = field(default_factory=list)


@dataclass(slots=True)
class Trace:
    """The state of a replay: its past steps, the current step, and each sequence's recording."""

    steps: list[ReplayedStep] = field(default_factory=list)
    current: ReplayedStep = field(default_factory=ReplayedStep)
    recordings: dict[Sequence, Recording] = field(default_factory=dict)
    by_prompt: dict[tuple[int, ...], Recording] = field(default_factory=dict)


class TracedPolicy(WatchedPolicy):
    """A policy whose rounds go into a trace."""

    def __init__(self, policy: DraftPolicy, trace: Trace) -> None:
        super().__init__(policy)
        self._trace = trace
        self._positions: dict[Sequence, int] = {}

    def plan(self, batch: collections.abc.Sequence[Sequence]) -> DraftPlan:
        """Begin a step and return the policy's plan."""
        self._positions = {sequence: sequence.num_generated for sequence in batch}
        return super().plan(batch)

    def observe(self, results: StepResults) -> None:
        """Pass the results to the policy and trace the rounds."""
        super().observe(results)
        for sequence, candidates, verdict in results.rounds:
            position, drafted = self._positions[sequence], len(candidates.ids)
            committed = sequence.num_generated - position
            source, accepted = candidates.source if drafted else "", min(verdict.accepted, committed)
            played = Round(self._trace.recordings[sequence], position, source, drafted, accepted, committed)
            self._trace.steps[-1].rounds.append(played)


class ReplayTarget(TorchModel):
    """Repeats the recorded text: the argmax of each row is the recorded next token, regardless of the draft."""

    def __init__(self, model: LanguageModel, trace: Trace) -> None:
        self.tokenizer, self.token_bytes, self.spec = model.tokenizer, model.token_bytes, model.spec
        self.device = torch.device("cpu")
        self.exact = True
        self.steps = "spans"
        self.cache = None
        self._rotary = None
        self._trace = trace
        self._held: dict[int, list[int]] = {}
        self._texts: dict[int, tuple[int, ...]] = {}  # slot -> prompt and completion

    def admit(self, slot: int, length: int, cached: int = 0) -> None:
        """Begin a new sequence in a slot, keeping the slot's first `cached` tokens."""
        self._held[slot] = self._held.get(slot, [])[:cached]
        self._texts.pop(slot, None)

    def fork(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of the slot `source` to the slot `target`."""
        self._held[target] = self._held[source][:length]

    def resumable(self, slot: int, length: int) -> int:
        """Return `length`: tokens can be cut anywhere."""
        return length

    def keep_for_later(self, slot: int, ids: collections.abc.Sequence[int], exactly: int = 0) -> None:
        """Do nothing: all tokens are kept."""

    def rollback(self, slot: int, length: int) -> None:
        """Cut a slot's tokens to `length`."""
        del self._held[slot][length:]

    def forward(self, batch: collections.abc.Sequence[Rows], cached: bool = True) -> Tensor:
        """Return one row of logits for each kept position; trace the step's work."""
        choices: list[int] = []
        for part in batch:
            held = self._held[part.slot]
            held[part.start :] = part.ids
            if part.keep:
                choices += self._choices(part)
        step, deciding = self._trace.current, [part for part in batch if part.keep]
        if deciding:
            step.rows, step.batch = len(choices), len(deciding)
            step.context = sum(part.start + len(part.ids) - part.keep + 1 for part in deciding) / step.batch
        self._trace.steps.append(step)
        self._trace.current = ReplayedStep()
        logits = torch.zeros(len(choices), self.spec.vocab_size)
        logits[torch.arange(len(choices)), torch.tensor(choices, dtype=torch.long)] = 1.0
        return logits

    def _choices(self, part: Rows) -> list[int]:
        held = self._held[part.slot]
        first = len(held) - part.keep + 1  # tokens before the draft
        if part.slot not in self._texts:
            recording = self._trace.by_prompt[tuple(held[:first])]
            self._texts[part.slot] = recording.prompt_ids + recording.ids
        text = self._texts[part.slot]
        return [text[n] if n < len(text) else 0 for n in range(first, first + part.keep)]


class ReplayLookup(Proposer):
    """Repeats the lookup's drafts with the same cuts."""

    name = SuffixProposer.name

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Return the recorded drafts."""
        drafts = [self._draft(sequence, cap) for sequence, cap in zip(sequences, caps, strict=True)]
        self._trace.current.drafts += sum(bool(draft.text) for draft in drafts)
        return drafts

    def _draft(self, sequence: Sequence, cap: Cap) -> Draft:
        recorded = self._trace.recordings[sequence].drafts[sequence.num_generated].get(self.name)
        if recorded is None or not cap.goes_on(recorded.draft.confidences):
            return NOTHING
        return cut_lookup(recorded.draft, sequence, cap)


class ReplayDrafter(Proposer):
    """Repeats the draft model's drafts unit by unit, and traces their forwards."""

    name = DraftModel.name

    def __init__(self, trace: Trace, context: int) -> None:
        self._trace = trace
        self._context = context
        self._cached: dict[Sequence, int] = {}  # tokens

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Return the recorded drafts."""
        drafts, lengths, unread = [NOTHING] * len(sequences), [], 0
        for number, (sequence, cap) in enumerate(zip(sequences, caps, strict=True)):
            recording, position = self._trace.recordings[sequence], sequence.num_generated
            units, forwards = self._units(recording, sequence, cap)
            unread += pending(recording, position, self._cached.get(sequence, 0))
            lengths.append(forwards)
            self._cached[sequence] = cached_after(recording, position, forwards)
            if units:
                drafts[number] = _cut(recording.drafts[position][self.name].draft, units)
        if lengths:
            going = [sum(length > turn for length in lengths) for turn in range(max(lengths))]
            self._trace.current.forwards += [(unread, going[0]), *((count, count) for count in going[1:])]
        self._trace.current.drafts += sum(bool(draft.text) and draft.ids is None for draft in drafts)
        return drafts

    def release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Forget the sequence."""
        self._cached.pop(sequence, None)

    def _units(self, recording: Recording, sequence: Sequence, cap: Cap) -> tuple[int, int]:
        """Return the number of units drafted under a cap, and of forwards: one more if the model stops by itself."""
        recorded = recording.drafts[sequence.num_generated].get(self.name)
        if recorded is None:
            return 0, 1
        draft, shared = recorded.draft, recorded.draft.ids is not None
        most = cap.tokens if shared else min(MAX_UNITS_A_TOKEN * cap.tokens, self._context // REFILL)
        budget = sequence.draft_bytes(cap)
        for units, end in enumerate(draft.ends, 1):
            enough = units >= most or (not shared and end >= budget)
            if enough or not cap.goes_on(draft.confidences[:units]):
                return units, units
        return len(draft.ends), len(draft.ends) + 1


def pending(recording: Recording, position: int, cached: int) -> int:
    """Return the number of tokens to prefill before drafting if `cached` tokens of the text are cached; at least 1."""
    return max(1, recording.drafter_lengths[position] - cached)


def cached_after(recording: Recording, position: int, forwards: int) -> int:
    """Return the number of tokens that the drafter keeps after a draft of `forwards` forwards: the text, and its own
    correct tokens that were fed back.
    """
    recorded = recording.drafts[position].get(DraftModel.name)
    return recording.drafter_lengths[position] + (min(recorded.agreeing, forwards - 1) if recorded is not None else 0)


def _cut(draft: Draft, units: int) -> Draft:
    end = draft.ends[units - 1]
    ids = None if draft.ids is None else draft.ids[:units]
    return Draft(draft.text[:end], draft.source, draft.ends[:units], draft.confidences[:units], ids)


def replay(
    pair: Pair,
    groups: Iterable[tuple[DraftPolicy, collections.abc.Sequence[Recording]]],
    *,
    batch: int = 1,
    sources: collections.abc.Sequence[str] = (SuffixProposer.name, DraftModel.name),
) -> list[ReplayedStep]:
    """Return the steps of all groups of recordings, each under its own policy in a new engine with an empty cache,
    `batch` recordings at a time. Raise MismatchError if a text differs from the recorded one.
    """
    trace = Trace()
    parts: list[Proposer] = [ReplayLookup(trace)] if SuffixProposer.name in sources else []
    if pair.drafter is not None and DraftModel.name in sources:
        parts.append(ReplayDrafter(trace, pair.drafter_context))
    target = ReplayTarget(pair.target, trace)
    for policy, recordings in groups:
        engine = Engine(
            target, parts, TracedPolicy(policy, trace), context=pair.context, max_batch=batch,
            prefill_chunk=USUAL_CHUNK, warmup=pair.warmup,
        )  # fmt: skip
        _run(engine, trace, recordings)
    return [step for step in trace.steps if step.batch]


def _run(engine: Engine, trace: Trace, recordings: collections.abc.Sequence[Recording]) -> None:
    sequences = []
    for recording in recordings:
        sequence = engine.submit(recording.request)[0]
        trace.recordings[sequence] = recording
        trace.by_prompt[tuple(sequence.prompt_ids)] = recording
        sequences.append(sequence)
    while not all(sequence.finish_reason for sequence in sequences):
        engine.step()
    written = [tuple(sequence.ids[len(sequence.prompt_ids) :]) for sequence in sequences]
    pairs = zip(written, recordings, strict=True)
    # Raise before any figure is written: the cost of such rounds would be meaningless.
    refuse_mismatches([f"the replay of {recording.site.path}" for ids, recording in pairs if ids != recording.ids])
