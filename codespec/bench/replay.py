"""Replays recorded completions under any policy: the real engine, policy and retokenization, with a target and
proposers that only say again what they said before. What comes out is which rounds there were and what each was made
of; what that costs is priced elsewhere.

Knows recordings and engines; measures no time.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Iterable

import torch
from torch import Tensor

from codespec.bench.mismatch import refuse_mismatches
from codespec.bench.pair import Pair
from codespec.bench.recording import Recording, cut_lookup
from codespec.bench.tape import Step, Tape, Watched
from codespec.engine.engine import Engine
from codespec.engine.tuning import USUAL_CHUNK
from codespec.models.language_model import LanguageModel
from codespec.models.rows import Rows
from codespec.proposers.base import NOTHING, Proposer, budget_bytes
from codespec.proposers.chain import ChainProposer
from codespec.proposers.draft_model import MAX_UNITS_A_TOKEN, DraftModel
from codespec.proposers.drafter_text import REFILL
from codespec.proposers.suffix import SuffixProposer
from codespec.sequence import Cap, Draft, Sequence
from codespec.speculation.policy import DraftLengthPolicy

PREFILL_CHUNK = USUAL_CHUNK  # policies are told of every step


class ReplayTarget(LanguageModel):
    """Says the recorded text: the argmax of each row is the recorded next token, whatever the draft was."""

    def __init__(self, model: LanguageModel, tape: Tape) -> None:
        self.tokenizer, self.token_bytes, self.spec = model.tokenizer, model.token_bytes, model.spec
        self.device = torch.device("cpu")
        self.exact = True
        self.steps = "spans"
        self.tp_group = None
        self.cache = None
        self._rotary = None
        self._tape = tape
        self._held: dict[int, list[int]] = {}
        self._texts: dict[int, tuple[int, ...]] = {}  # slot -> prompt and completion

    def admit(self, slot: int, length: int, cached: int = 0) -> None:
        """A new sequence begins in a slot, perhaps like the one before it."""
        self._held[slot] = self._held.get(slot, [])[:cached]
        self._texts.pop(slot, None)

    def fork(self, source: int, target: int, length: int) -> None:
        """A prompt that begins like one that is held goes on from there."""
        self._held[target] = self._held[source][:length]

    def rollback(self, slot: int, length: int) -> None:
        """Cuts what was fed."""
        del self._held[slot][length:]

    def forward(self, batch: collections.abc.Sequence[Rows], cached: bool = True) -> Tensor:
        """One row of logits for each kept position; notes what the step was made of."""
        choices: list[int] = []
        for part in batch:
            held = self._held[part.slot]
            held[part.start :] = part.ids
            if part.keep:
                choices += self._says(part)
        step, deciding = self._tape.open, [part for part in batch if part.keep]
        if deciding:
            step.rows, step.batch = len(choices), len(deciding)
            step.context = sum(part.start + len(part.ids) - part.keep + 1 for part in deciding) / step.batch
        self._tape.steps.append(step)
        self._tape.open = Step()
        logits = torch.zeros(len(choices), self.spec.vocab_size)
        logits[torch.arange(len(choices)), torch.tensor(choices, dtype=torch.long)] = 1.0
        return logits

    def _says(self, part: Rows) -> list[int]:
        held = self._held[part.slot]
        first = len(held) - part.keep + 1  # tokens that are certain
        if part.slot not in self._texts:
            recording = self._tape.by_prompt[tuple(held[:first])]
            self._texts[part.slot] = recording.prompt_ids + recording.ids
        text = self._texts[part.slot]
        return [text[place] if place < len(text) else 0 for place in range(first, first + part.keep)]


class ReplayLookup(Proposer):
    """Drafts what the lookup drafted here, cut as it cuts."""

    name = SuffixProposer.name

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """The recorded drafts."""
        drafts = [self._draft(s, cap) if cap.tokens else NOTHING for s, cap in zip(sequences, caps, strict=True)]
        self._tape.open.drafts += sum(bool(draft.text) for draft in drafts)
        return drafts

    def _draft(self, sequence: Sequence, cap: Cap) -> Draft:
        guess = self._tape.playing[sequence].guesses[sequence.num_generated].get(self.name)
        if guess is None or not cap.goes_on(guess.draft.confidences):
            return NOTHING
        return cut_lookup(guess.draft, sequence, cap)


class ReplayDrafter(Proposer):
    """Drafts what the drafting model drafted here, unit by unit, and notes the forwards that this takes."""

    name = DraftModel.name

    def __init__(self, tape: Tape, context: int) -> None:
        self._tape = tape
        self._context = context
        self._cached: dict[Sequence, int] = {}  # tokens

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """The recorded drafts."""
        drafts, lengths, unread = [NOTHING] * len(sequences), [], 0
        for place, (sequence, cap) in enumerate(zip(sequences, caps, strict=True)):
            if not cap.tokens:
                continue
            recording, position = self._tape.playing[sequence], sequence.num_generated
            units, forwards = self._units(recording, sequence, cap)
            unread += pending(recording, position, self._cached.get(sequence, 0))
            lengths.append(forwards)
            self._cached[sequence] = cached_after(recording, position, forwards)
            if units:
                drafts[place] = _cut(recording.guesses[position][self.name].draft, units)
        if lengths:
            going = [sum(length > turn for length in lengths) for turn in range(max(lengths))]
            self._tape.open.forwards += [(unread, going[0]), *((count, count) for count in going[1:])]
        self._tape.open.drafts += sum(bool(draft.text) and draft.ids is None for draft in drafts)
        return drafts

    def commit(self, sequence: Sequence) -> None:
        """Nothing yet."""

    def release(self, sequence: Sequence) -> None:
        """Its slot is free."""
        self._cached.pop(sequence, None)

    def _units(self, recording: Recording, sequence: Sequence, cap: Cap) -> tuple[int, int]:
        """How many units the model drafts under a cap, and in how many forwards: one more where it ends by itself."""
        guess = recording.guesses[sequence.num_generated].get(self.name)
        if guess is None:
            return 0, 1
        draft, shared = guess.draft, guess.draft.ids is not None
        most = cap.tokens if shared else min(MAX_UNITS_A_TOKEN * cap.tokens, self._context // REFILL)
        budget = budget_bytes(sequence, cap)
        for units, end in enumerate(draft.ends, 1):
            enough = units >= most or (not shared and end >= budget)
            if enough or not cap.goes_on(draft.confidences[:units]):
                return units, units
        return len(draft.ends), len(draft.ends) + 1


def pending(recording: Recording, position: int, cached: int) -> int:
    """How many tokens the drafter reads before it guesses, `cached` of the text being read already; at least one."""
    return max(1, recording.read[position] - cached)


def cached_after(recording: Recording, position: int, forwards: int) -> int:
    """How many tokens the drafter has read, and may keep, after a draft of so many forwards: of its own the right ones
    that it was fed.
    """
    guess = recording.guesses[position].get(DraftModel.name)
    return recording.read[position] + (min(guess.agreeing, forwards - 1) if guess is not None else 0)


def _cut(draft: Draft, units: int) -> Draft:
    end = draft.ends[units - 1]
    ids = None if draft.ids is None else draft.ids[:units]
    return Draft(draft.text[:end], draft.source, draft.ends[:units], draft.confidences[:units], ids)


def replay(
    pair: Pair,
    groups: Iterable[tuple[DraftLengthPolicy, collections.abc.Sequence[Recording]]],
    *,
    batch: int = 1,
    sources: collections.abc.Sequence[str] = (SuffixProposer.name, DraftModel.name),
) -> list[Step]:
    """The steps of all groups, each played under its own policy by an engine that has read no prompt yet, `batch`
    recordings at a time.
    """
    tape = Tape()
    parts: list[Proposer] = [ReplayLookup(tape)] if SuffixProposer.name in sources else []
    if pair.drafter is not None and DraftModel.name in sources:
        parts.append(ReplayDrafter(tape, pair.drafter_context))
    target, proposer = ReplayTarget(pair.target, tape), ChainProposer(parts)
    for policy, recordings in groups:
        engine = Engine(
            target, proposer, Watched(policy, tape), context=pair.context, max_batch=batch,
            prefill_chunk=PREFILL_CHUNK, warmup=pair.warmup,
        )  # fmt: skip
        _play(engine, tape, recordings)
    return [step for step in tape.steps if step.batch]


def _play(engine: Engine, tape: Tape, recordings: collections.abc.Sequence[Recording]) -> None:
    playing = []
    for recording in recordings:
        sequence = engine.submit(recording.request)[0]
        tape.playing[sequence] = recording
        tape.by_prompt[tuple(sequence.prompt_ids)] = recording
        playing.append(sequence)
    while not all(sequence.finish_reason for sequence in playing):
        engine.step()
    written = [tuple(sequence.ids[len(sequence.prompt_ids) :]) for sequence in playing]
    pairs = zip(written, recordings, strict=True)
    # Now, before anything is written: what such rounds cost would mean nothing.
    refuse_mismatches([f"the replay of {recording.spot.path}" for ids, recording in pairs if ids != recording.ids])
