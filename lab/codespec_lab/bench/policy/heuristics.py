"""Policies of other projects, for comparison: a confidence threshold, and the heuristic of assisted generation."""

from __future__ import annotations

from codespec.sequence import Cap
from codespec.speculation.policy import FixedLength, StepResults, lookup_cap


class ConfidenceStopped(FixedLength):
    """Drafts up to `tokens`; a drafter stops at the first unit below `threshold` (transformers: 0.4)."""

    name = "confidence"

    def __init__(self, tokens: int, threshold: float = 0.4) -> None:
        super().__init__(tokens)
        self.cap = Cap(tokens, threshold)


class PlusTwoMinusOne(FixedLength):
    """Drafts two tokens more after a fully accepted draft, one less after any other; at least 1.

    This is the heuristic of assisted generation in transformers, with one length for all requests as there.
    """

    name = "plus2minus1"

    def __init__(self, tokens: int, begin: int = 5) -> None:
        super().__init__(min(begin, tokens))
        self._most = tokens

    def observe(self, results: StepResults) -> None:
        """Adapt the length."""
        for _, candidates, verdict in results.rounds:
            if candidates.ids:
                change = 2 if verdict.accepted == len(candidates.ids) else -1
                self.cap = lookup_cap(min(self._most, max(1, self.cap.tokens + change)))
