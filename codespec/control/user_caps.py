"""A user's own numbers: for a context class, or a class in one language, a length that no policy exceeds."""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping

from codespec.control.draft_length import DraftLengthPolicy
from codespec.control.syntax import follow
from codespec.sequence import Candidates, Cap, Sequence, Verdict


class UserCapped:
    """Another policy under hard caps, by `class` or `language.class`; the language's own number goes first."""

    follows_syntax = True

    def __init__(self, policy: DraftLengthPolicy, caps: Mapping[str, int]) -> None:
        self.name = policy.name
        self.policy = policy
        self.limits = dict(caps)

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """The policy's caps, none above the user's number."""
        open_ = [sequence for sequence in sequences if sequence.room]
        follow(open_)
        for sequence in open_:
            sequence.room = min(sequence.room, self._limit(sequence))
        return self.policy.caps(sequences)

    def trim(self, sequences: collections.abc.Sequence[Sequence], candidates: list[Candidates]) -> list[Candidates]:
        """As the policy trims."""
        return self.policy.trim(sequences, candidates)

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """The policy learns."""
        self.policy.observe(sequence, candidates, verdict)

    def close(self) -> None:
        """The policy keeps what it learned."""
        self.policy.close()

    def _limit(self, sequence: Sequence) -> int:
        outlook = sequence.outlook
        found = self.limits.get(f"{outlook.language}.{outlook.context}", self.limits.get(outlook.context))
        return sequence.room if found is None else found
