"""Record a pair: the target's text, and at every token the full-length draft of each proposer.

Speculation does not change the text, so every policy can be replayed on a recording.
"""

from __future__ import annotations

import collections.abc
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from codespec.api.types import CompletionRequest, FinishReason
from codespec.backends.language_model import LanguageModel, common_prefix
from codespec.engine.engine import Engine
from codespec.engine.round import to_candidates
from codespec.proposers.base import NOTHING, Proposer
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.lookup import SuffixProposer, end_after_spaces
from codespec.sequence import Cap, Draft, Sequence
from codespec.speculation.policy import FixedLength
from codespec_lab.bench.pair import LONGEST, Pair
from codespec_lab.bench.sites import Site

BATCH = 16  # the most sequences of a replay at once


@dataclass(slots=True)
class RecordedDraft:
    """One proposer's whole draft at one position.

    `cuts[n]` is the number of target tokens accepted if the draft were cut after n units (a model's draft) or to a cap
    of n (a lookup's). The first `agreeing` units match the text.
    """

    draft: Draft
    candidates: list[tuple[int, ...]]
    cuts: tuple[int, ...] = ()
    agreeing: int = 0


@dataclass(slots=True)
class Recording:
    """One completion. By position (tokens written so far): the context class, the drafts by proposer, and
    `drafter_lengths`, the text's length in the drafter's own tokens.
    """

    site: Site
    request: CompletionRequest
    prompt_ids: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    text: bytes = b""
    contexts: dict[int, str] = field(default_factory=dict)
    drafts: dict[int, dict[str, RecordedDraft]] = field(default_factory=dict)
    drafter_lengths: list[int] = field(default_factory=list)


class RecordingProposer(Proposer):
    """Lets every proposer draft at full length, records the drafts, and proposes nothing itself."""

    name = "recording"

    def __init__(self, pair: Pair) -> None:
        self.parts = pair.proposers(BATCH)
        self.tokenizer = pair.target.tokenizer
        self.recordings: dict[Sequence, Recording] = {}

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Record the drafts of all sequences."""
        for sequence in sequences:
            recording, position = self.recordings[sequence], sequence.num_generated
            sequence.follow_syntax()
            recording.contexts[position] = sequence.outlook.context
            recording.drafts[position] = {}
        full = [Cap(min(LONGEST, sequence.room)) for sequence in sequences]
        for part in self.parts:
            for sequence, cap, draft in zip(sequences, full, part.propose(sequences, full), strict=True):
                if draft.text:
                    recorded = RecordedDraft(draft, self._all_candidates(sequence, cap, draft))
                    self.recordings[sequence].drafts[sequence.num_generated][part.name] = recorded
        return [NOTHING] * len(sequences)

    def release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Notify the proposers that hold slots, but not the lookup: it would find this text in later ones."""
        for part in self.parts:
            if part.name != SuffixProposer.name:
                part.release(sequence, reason)

    def _all_candidates(self, sequence: Sequence, cap: Cap, draft: Draft) -> list[tuple[int, ...]]:
        """Return the candidates of the draft and of every shorter draft."""
        if draft.ids is not None:
            return [draft.ids[:count] for count in range(len(draft.ids) + 1)]
        shorter = [cut_lookup(draft, sequence, Cap(n)) for n in range(1, cap.tokens + 1)]
        caps = [Cap(n) for n in range(1, cap.tokens + 1)]
        if draft.source == DraftModel.name:
            shorter = [Draft(draft.text[:end], draft.source, (end,), (1.0,)) for end in draft.ends]
            caps = [cap] * len(shorter)
        found = to_candidates(self.tokenizer, [sequence] * len(shorter), shorter, caps)
        return [(), *(candidates.ids for candidates in found)]


def cut_lookup(draft: Draft, sequence: Sequence, cap: Cap) -> Draft:
    """Return a lookup's full draft as cut by a smaller cap."""
    text = end_after_spaces(draft.text, sequence.draft_bytes(cap))
    return Draft(text, draft.source, (len(text),), draft.confidences)


def record(
    pair: Pair, sites: collections.abc.Sequence[Site], tokens: int, advance: Callable[[], None]
) -> list[Recording]:
    """Complete every site with plain decoding, at most `tokens` target tokens, and call `advance` after each. Leave out
    sites without any possible draft.
    """
    proposer = RecordingProposer(pair)
    engine = Engine(pair.target, [proposer], FixedLength(1), context=pair.context, max_batch=BATCH, warmup=pair.warmup)
    sequences = []
    for site in sites:
        request = site.request(tokens)
        sequence = engine.submit(request)[0]
        proposer.recordings[sequence] = Recording(site, request, tuple(sequence.prompt_ids))
        sequences.append(sequence)
    running = list(sequences)
    while running:
        engine.step()
        for sequence in [s for s in running if s.finish_reason]:
            running.remove(sequence)
            _finish(proposer.recordings[sequence], sequence, pair)
            advance()
    return [r for r in (proposer.recordings[sequence] for sequence in sequences) if 0 in r.drafts]


def _finish(recording: Recording, sequence: Sequence, pair: Pair) -> None:
    """Compare every draft with the generated text."""
    recording.ids = tuple(sequence.ids[len(sequence.prompt_ids) :])
    recording.text = bytes(sequence.generated)
    ends = [0, *accumulate(len(pair.target.token_bytes[token]) for token in recording.ids)]
    for position, drafts in recording.drafts.items():
        rest, text = recording.ids[position:], recording.text[ends[position] :]
        for recorded in drafts.values():
            recorded.cuts = tuple(common_prefix(ids, rest) for ids in recorded.candidates)
            recorded.candidates = []
            recorded.agreeing = sum(text.startswith(recorded.draft.text[:end]) for end in recorded.draft.ends)
    if pair.drafter is not None:
        recording.drafter_lengths = _drafter_lengths(pair, pair.drafter, sequence, ends)


def _drafter_lengths(pair: Pair, drafter: LanguageModel, sequence: Sequence, ends: list[int]) -> list[int]:
    """Return the text's length in the drafter's tokens at each position, if it tokenized the whole text at once."""
    if pair.shares_ids:
        return [len(sequence.prompt_ids) + position for position in range(len(ends))]
    text = sequence.context + bytes(sequence.generated)
    pieces = [drafter.tokenizer.token_bytes[token] for token in drafter.tokenizer.spell([text])[0]]
    borders = list(accumulate(len(piece) for piece in pieces))
    return [bisect_right(borders, len(sequence.context) + end) for end in ends]
