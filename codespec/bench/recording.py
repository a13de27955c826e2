"""What a pair did once, written down at every token: the target's own text, and what each proposer would have drafted
there at full length. Speculation changes no text, so every policy can be replayed on it.

Knows an engine, its proposers and their drafts; knows no policy and no costs.
"""

from __future__ import annotations

import collections.abc
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from codespec.bench.pair import Pair
from codespec.engine.candidates import to_candidates
from codespec.engine.engine import Engine
from codespec.models.language_model import LanguageModel
from codespec.proposers.base import NOTHING, Proposer, budget_bytes
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.suffix import SuffixProposer, end_after_spaces
from codespec.sequence import Cap, Draft, Sequence
from codespec.speculation.contexts import follow
from codespec.speculation.policy import FixedLength
from codespec.types import CompletionRequest

LONGEST = 16  # target tokens of a draft
BATCH = 8


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a recorded completion begins. `project` and `path` say what may be learned from what."""

    project: str
    path: str
    language: str
    prefix: str
    suffix: str = ""

    def request(self, tokens: int) -> CompletionRequest:
        """Greedy, the target's tokens alone."""
        return CompletionRequest(prefix=self.prefix, suffix=self.suffix, path=self.path, max_tokens=tokens)


@dataclass(slots=True)
class Guess:
    """One proposer's whole draft at one place. `cuts[n]` is how many target tokens the target agrees with, were the
    draft cut behind n units (a model's draft) or to a cap of n (a lookup's); `agreeing` of its units spell the text.
    """

    draft: Draft
    candidates: list[tuple[int, ...]]
    cuts: tuple[int, ...] = ()
    agreeing: int = 0


@dataclass(slots=True)
class Recording:
    """One completion. By position (tokens written so far): `contexts`, `guesses` by source, and `read`, how many of the
    drafter's own tokens the text is.
    """

    spot: Spot
    request: CompletionRequest
    prompt_ids: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    text: bytes = b""
    contexts: dict[int, str] = field(default_factory=dict)
    guesses: dict[int, dict[str, Guess]] = field(default_factory=dict)
    read: list[int] = field(default_factory=list)


class Listener(Proposer):
    """Stands where the proposer stands, has every proposer draft at full length, and proposes nothing."""

    name = "listener"

    def __init__(self, pair: Pair) -> None:
        self.parts = pair.proposers(BATCH)
        self.tokenizer = pair.target.tokenizer
        self.heard: dict[Sequence, Recording] = {}

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Writes down the drafts of all sequences that could use one."""
        asking = [sequence for sequence in sequences if sequence.room]
        for sequence in asking:
            recording, position = self.heard[sequence], sequence.num_generated
            follow([sequence])
            recording.contexts[position] = sequence.outlook.context
            recording.guesses[position] = {}
        full = [Cap(min(LONGEST, sequence.room)) for sequence in asking]
        for part in self.parts if asking else ():
            for sequence, cap, draft in zip(asking, full, part.propose(asking, full), strict=True):
                if draft.text:
                    guess = Guess(draft, self._spelled(sequence, cap, draft))
                    self.heard[sequence].guesses[sequence.num_generated][part.name] = guess
        return [NOTHING] * len(sequences)

    def commit(self, sequence: Sequence) -> None:
        """Tells the proposers."""
        for part in self.parts:
            part.commit(sequence)

    def release(self, sequence: Sequence) -> None:
        """Tells those that hold slots; a lookup that remembers would find what the policy's order left there."""
        for part in self.parts:
            if part.name != SuffixProposer.name:
                part.release(sequence)

    def _spelled(self, sequence: Sequence, cap: Cap, draft: Draft) -> list[tuple[int, ...]]:
        """The candidates of every shorter draft."""
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
    """A lookup's full draft as it would have been under a smaller cap."""
    text = end_after_spaces(draft.text, budget_bytes(sequence, cap))
    return Draft(text, draft.source, (len(text),), draft.confidences)


def record(
    pair: Pair, spots: collections.abc.Sequence[Spot], tokens: int, advance: Callable[[], None]
) -> list[Recording]:
    """Completes every spot, plain, with at most `tokens` target tokens. Spots where nothing could be drafted are left
    out. `advance` is told each finished one.
    """
    listener = Listener(pair)
    engine = Engine(pair.target, listener, FixedLength(0), context=pair.context, max_batch=BATCH, warmup=pair.warmup)
    sequences = []
    for spot in spots:
        request = spot.request(tokens)
        sequence = engine.submit(request)[0]
        listener.heard[sequence] = Recording(spot, request, tuple(sequence.prompt_ids))
        sequences.append(sequence)
    under_way = list(sequences)
    while under_way:
        engine.step()
        for sequence in [s for s in under_way if s.finish_reason]:
            under_way.remove(sequence)
            _finish(listener.heard[sequence], sequence, pair)
            advance()
    return [r for r in (listener.heard[sequence] for sequence in sequences) if 0 in r.guesses]


def _finish(recording: Recording, sequence: Sequence, pair: Pair) -> None:
    """Compares every guess with what was written."""
    recording.ids = tuple(sequence.ids[len(sequence.prompt_ids) :])
    recording.text = bytes(sequence.generated)
    ends = [0, *accumulate(len(pair.target.token_bytes[token]) for token in recording.ids)]
    for position, guesses in recording.guesses.items():
        rest, text = recording.ids[position:], recording.text[ends[position] :]
        for guess in guesses.values():
            guess.cuts = tuple(_agreeing(ids, rest) for ids in guess.candidates)
            guess.candidates = []
            guess.agreeing = sum(text.startswith(guess.draft.text[:end]) for end in guess.draft.ends)
    if pair.drafter is not None:
        recording.read = _read(pair, pair.drafter, sequence, ends)


def _read(pair: Pair, drafter: LanguageModel, sequence: Sequence, ends: list[int]) -> list[int]:
    """How many tokens the drafter's text is, by position; of a text that it spells whole, without regard to rounds."""
    if pair.shares_ids:
        return [len(sequence.prompt_ids) + position for position in range(len(ends))]
    text = sequence.context + bytes(sequence.generated)
    pieces = [drafter.tokenizer.token_bytes[token] for token in drafter.tokenizer.spell([text])[0]]
    borders = list(accumulate(len(piece) for piece in pieces))
    return [bisect_right(borders, len(sequence.context) + end) for end in ends]


def _agreeing(candidates: tuple[int, ...], choices: tuple[int, ...]) -> int:
    pairs = zip(candidates, choices, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(candidates), len(choices)))
