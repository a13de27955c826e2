"""How far to guess: the seam, and the policies that learn nothing. Knows counts and confidences, no model.

A fixed length, and a length that stops where the drafter is unsure. The cost rule (cost_rule) and the rules of thumb it
is compared with (rules_of_thumb) stand behind the same interface.
"""

from __future__ import annotations

import collections.abc
from typing import Protocol

from codespec.sequence import Candidates, Cap, Sequence, Verdict

LIKELY = 0.4  # of a lookup: eight bytes match, and the first token is right in six of ten cases (bench/LOG.md)


class DraftLengthPolicy(Protocol):
    """Sets caps before drafting, trims across the batch after retokenization, and learns from what the target said.

    `follows_syntax` says whether it asks for contexts (`control.syntax.follow`).
    """

    name: str
    follows_syntax: bool

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """How far each sequence may guess; the engine lowers it to what the request still needs."""
        ...

    def trim(self, sequences: collections.abc.Sequence[Sequence], candidates: list[Candidates]) -> list[Candidates]:
        """The candidates worth verifying, one entry a sequence."""
        ...

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """Learns from one round of a sequence, drafted or not; the sequence has grown by what was committed."""
        ...

    def close(self) -> None:
        """Keeps what was learned, where that is wanted."""
        ...


def blind_cap(tokens: int) -> Cap:
    """The cap of a policy that weighs no chances: a lookup of a shorter match would cost it more than it brings."""
    return Cap(tokens, by_source={"suffix": Cap(tokens, LIKELY)})


class FixedLength:
    """Always `tokens` target tokens; of lookups the likely ones."""

    name = "fixed"
    follows_syntax = False

    def __init__(self, tokens: int) -> None:
        self.cap = blind_cap(tokens)

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """The same cap for all."""
        return [self.cap] * len(sequences)

    def trim(self, sequences: collections.abc.Sequence[Sequence], candidates: list[Candidates]) -> list[Candidates]:
        """Everything drafted is verified."""
        return candidates

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """Nothing is learned."""

    def close(self) -> None:
        """Nothing is kept."""


class ConfidenceStopped(FixedLength):
    """Up to `tokens`, but a drafter stops before the first unit it gives less than `threshold` (HF's default is
    0.4).
    """

    name = "confidence"

    def __init__(self, tokens: int, threshold: float = 0.4) -> None:
        super().__init__(tokens)
        self.cap = Cap(tokens, threshold)
