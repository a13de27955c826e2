"""The draft-length policy interface, and the simple policies that use neither probabilities nor costs.

These are a fixed length, a table by syntax, and user caps over any policy. The cost policy is in `cost_policy`.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping
from dataclasses import replace

from codespec.sequence import Candidates, Cap, Sequence, Verdict
from codespec.speculation.cost_model import CostTable

LIKELY = 0.4  # lookup confidence for an 8-byte match: its first token is right in 6 of 10 cases (lab/LOG.md)
WARM_UP = 100
MARKED = 10  # ds4-80: in comments and after TRIGGERS
ELSEWHERE = 3  # our choice: the table has no entry
TRIGGERS = b"-=*"


class DraftLengthPolicy:
    """Caps drafts before drafting, trims them across the batch after retokenization, and learns from verdicts.

    `follows_syntax` is whether it uses syntax contexts (`Sequence.follow_syntax`). `costs` is its cost table, if any.
    All methods except `caps` have defaults that suit a policy that neither trims nor learns.
    """

    name: str
    follows_syntax = False
    costs: CostTable | None = None

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """Return each sequence's cap. The engine lowers it to what the request still needs."""
        raise NotImplementedError

    def trim(self, sequences: collections.abc.Sequence[Sequence], candidates: list[Candidates]) -> list[Candidates]:
        """Return the candidates worth verifying, one entry per sequence."""
        return candidates

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """Learn from one round of a sequence, with or without a draft. Called after the commit."""

    def timed(self, drafting: float, verifying: float) -> None:
        """Learn from the seconds that the last step's drafting and verify took."""

    def close(self) -> None:
        """Save the learned state, if configured."""


def follow_syntax(sequences: collections.abc.Sequence[Sequence]) -> None:
    """Update the syntax context of every sequence that may draft."""
    for sequence in sequences:
        if sequence.room:
            sequence.follow_syntax()


def blind_cap(tokens: int) -> Cap:
    """Return the cap for a policy without probabilities.

    It excludes short lookup matches, which would cost more than they gain.
    """
    return Cap(tokens, by_source={"suffix": Cap(tokens, LIKELY)})


class FixedLength(DraftLengthPolicy):
    """Always drafts `tokens` target tokens; uses only likely lookups."""

    name = "fixed"

    def __init__(self, tokens: int) -> None:
        self.cap = blind_cap(tokens)

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """Return the same cap for all sequences."""
        return [self.cap] * len(sequences)


class Ds4Table(FixedLength):
    """The table of ds4's issue 80: draft length by the syntax at the end of the text.

    It is 10 in a comment, 0 in free text, 10 after -, = or *, and 0 before WARM_UP tokens of context.
    """

    name = "ds4-80"
    follows_syntax = True

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """Return the table's cap for each sequence, or ELSEWHERE if the table has none."""
        follow_syntax(sequences)
        return [blind_cap(min(self.cap.tokens, _tabled(sequence))) for sequence in sequences]


def _tabled(sequence: Sequence) -> int:
    if sequence.outlook.context == "free_text" or len(sequence.ids) < WARM_UP:
        return 0
    tip = (sequence.known or sequence.context)[-1:]
    return MARKED if sequence.outlook.context == "comment" or (tip and tip in TRIGGERS) else ELSEWHERE


class WrappedPolicy(DraftLengthPolicy):
    """Another policy whose methods a subclass may change or watch. By default all go to `policy`."""

    def __init__(self, policy: DraftLengthPolicy) -> None:
        self.name, self.follows_syntax, self.costs = policy.name, policy.follows_syntax, policy.costs
        self.policy = policy

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """Delegate to the policy."""
        return self.policy.caps(sequences)

    def trim(self, sequences: collections.abc.Sequence[Sequence], candidates: list[Candidates]) -> list[Candidates]:
        """Delegate to the policy."""
        return self.policy.trim(sequences, candidates)

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """Delegate to the policy."""
        self.policy.observe(sequence, candidates, verdict)

    def timed(self, drafting: float, verifying: float) -> None:
        """Delegate to the policy, and take over its costs."""
        self.policy.timed(drafting, verifying)
        self.costs = self.policy.costs

    def close(self) -> None:
        """Delegate to the policy."""
        self.policy.close()


class UserCapped(WrappedPolicy):
    """Another policy limited by user caps, by `class` or `language.class`. The language's cap takes precedence."""

    def __init__(self, policy: DraftLengthPolicy, limits: Mapping[str, int]) -> None:
        super().__init__(policy)
        self.follows_syntax = True
        self._limits = dict(limits)

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """Return the policy's caps, limited to the user's."""
        follow_syntax(sequences)
        return [self._limited(s, cap) for s, cap in zip(sequences, super().caps(sequences), strict=True)]

    def _limited(self, sequence: Sequence, cap: Cap) -> Cap:
        outlook = sequence.outlook
        limit = self._limits.get(f"{outlook.language}.{outlook.context}", self._limits.get(outlook.context))
        return cap if limit is None or cap.tokens <= limit else replace(cap, tokens=limit)
