"""How far a draft is right. Knows ids only."""

from __future__ import annotations

import collections.abc
from typing import Protocol


class AcceptanceRule(Protocol):
    """Decides how many candidates stand, given the target's own choice for every row."""

    def accept(self, candidates: collections.abc.Sequence[int], choices: collections.abc.Sequence[int]) -> int:
        """The number of candidates to keep; `choices` is one longer (the correction or bonus token)."""
        ...


class MatchRule:
    """The longest prefix in which candidate and choice are equal.

    Exact for greedy and for seeded sampling alike, because a choice does not depend on the draft (string-level exact
    match where the draft came as text: Timor et al. 2025; seeded replay: Daliri et al. 2024).
    """

    def accept(self, candidates: collections.abc.Sequence[int], choices: collections.abc.Sequence[int]) -> int:
        """The length of the common prefix."""
        for index, (candidate, choice) in enumerate(zip(candidates, choices, strict=False)):
            if candidate != choice:
                return index
        return len(candidates)
