"""How far to guess: the seam, and the policies that learn nothing of probabilities and costs. Knows contexts and
confidences; does not know models.

A fixed length, a length that stops where the drafter is unsure, two rules of thumb, and a user's own caps over any of
them. The cost policy (cost_policy) stands behind the same seam.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from codespec.sequence import Candidates, Cap, Sequence, Verdict
from codespec.speculation.contexts import follow
from codespec.speculation.cost_model import CostTable

LIKELY = 0.4  # confidence of a lookup: eight bytes match, and its first token is right in six of ten (lab/LOG.md)
WARM_UP = 100
MARKED, ELSEWHERE = 10, 3  # ds4-80: in comments and behind TRIGGERS; it says nothing of the rest
TRIGGERS = b"-=*"


class DraftLengthPolicy(Protocol):
    """Caps drafts before they are made, trims them across the batch after retokenization, and learns from verdicts.

    `follows_syntax`: whether it asks for contexts (`contexts.follow`). `costs`: the table that it goes by, if any.
    """

    name: str
    follows_syntax: bool
    costs: CostTable | None

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """How far each sequence may guess; the engine lowers it to what the request still needs."""
        ...

    def trim(self, sequences: collections.abc.Sequence[Sequence], candidates: list[Candidates]) -> list[Candidates]:
        """The candidates worth verifying, one entry a sequence."""
        ...

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """Learns from one round of a sequence, drafted or not; the sequence has grown by what was committed."""
        ...

    def timed(self, drafting: float, verifying: float) -> None:
        """Learns how many seconds the last step's drafts and its verify took."""
        ...

    def close(self) -> None:
        """Keeps what was learned, where that is wanted."""
        ...


def blind_cap(tokens: int) -> Cap:
    """The cap of a policy without probabilities: a lookup of a shorter match would cost it more than it brings."""
    return Cap(tokens, by_source={"suffix": Cap(tokens, LIKELY)})


class FixedLength:
    """Always `tokens` target tokens; of lookups the likely ones."""

    name = "fixed"
    follows_syntax = False
    costs: CostTable | None = None

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

    def timed(self, drafting: float, verifying: float) -> None:
        """Nothing is learned."""

    def close(self) -> None:
        """Nothing is kept."""


class ConfidenceStopped(FixedLength):
    """Up to `tokens`, but a drafter stops before the first unit it gives less than `threshold` (transformers: 0.4)."""

    name = "confidence"

    def __init__(self, tokens: int, threshold: float = 0.4) -> None:
        super().__init__(tokens)
        self.cap = Cap(tokens, threshold)


class PlusTwoMinusOne(FixedLength):
    """Two tokens longer after a draft that was right to its end, one shorter after any other; at least 1.

    (The heuristic of transformers' assisted generation. One length for all requests, as there.)
    """

    name = "plus2minus1"

    def __init__(self, tokens: int, begin: int = 5) -> None:
        super().__init__(min(begin, tokens))
        self._most = tokens

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """Adapts the length."""
        if candidates.ids:
            change = 2 if verdict.accepted == len(candidates.ids) else -1
            self.cap = blind_cap(min(self._most, max(1, self.cap.tokens + change)))


class Ds4Table(FixedLength):
    """The table of ds4's issue 80, by what stands at the tip: in a comment 10, in free text 0, behind - = or * 10, and
    nothing before there are WARM_UP tokens of context.
    """

    name = "ds4-80"
    follows_syntax = True

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """One number a sequence; ELSEWHERE where the table has none."""
        follow([sequence for sequence in sequences if sequence.room])
        return [blind_cap(min(self.cap.tokens, _tabled(sequence))) for sequence in sequences]


def _tabled(sequence: Sequence) -> int:
    if sequence.outlook.context == "free_text" or len(sequence.ids) < WARM_UP:
        return 0
    tip = (sequence.known or sequence.context)[-1:]
    return MARKED if sequence.outlook.context == "comment" or (tip and tip in TRIGGERS) else ELSEWHERE


class UserCapped:
    """Another policy under a user's hard caps, by `class` or `language.class`; the language's own number goes first."""

    follows_syntax = True

    def __init__(self, policy: DraftLengthPolicy, limits: Mapping[str, int]) -> None:
        self.name, self.costs = policy.name, policy.costs
        self._policy, self._limits = policy, dict(limits)

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """The policy's caps, none above the user's number."""
        follow([sequence for sequence in sequences if sequence.room])
        return [self._limited(s, cap) for s, cap in zip(sequences, self._policy.caps(sequences), strict=True)]

    def trim(self, sequences: collections.abc.Sequence[Sequence], candidates: list[Candidates]) -> list[Candidates]:
        """As the policy trims."""
        return self._policy.trim(sequences, candidates)

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """The policy learns."""
        self._policy.observe(sequence, candidates, verdict)

    def timed(self, drafting: float, verifying: float) -> None:
        """The policy learns, and its costs may be others."""
        self._policy.timed(drafting, verifying)
        self.costs = self._policy.costs

    def close(self) -> None:
        """The policy keeps what it learned."""
        self._policy.close()

    def _limited(self, sequence: Sequence, cap: Cap) -> Cap:
        outlook = sequence.outlook
        limit = self._limits.get(f"{outlook.language}.{outlook.context}", self._limits.get(outlook.context))
        return cap if limit is None or cap.tokens <= limit else replace(cap, tokens=limit)
