"""Limits on the cost of drafting: a loss budget shared by all texts, a bound per text, and an exploration credit.

The unit is a round: the time of a plain step divided by its sequences, that is, the time of one token. All times are
modelled, not measured, so that identical rounds lead to identical decisions on busy and idle machines.
"""

from __future__ import annotations

from dataclasses import dataclass

BUDGET = 8.0  # rounds that all drafts together may lose
SHARE = 0.01  # plus this many rounds per generated token
TEXT, TEXT_SHARE = 2.0, 0.05  # the same limits for one text
EXPLORE = 0.003  # share of time for drafts that are not expected to pay
MOST_CREDIT = 64.0  # maximum exploration credit, in rounds
MEMORY = 0.98  # decay of the speedup estimate per step
BEGIN = 16.0  # initial weight, in plain steps


@dataclass(slots=True)
class Losses:
    """Rounds lost by all drafts (their cost minus the accepted tokens), and the number of generated tokens.

    Gains of one text offset losses of others, up to the initial budget.
    """

    lost: float = 0.0
    written: int = 0

    @property
    def left(self) -> float:
        """Rounds that may still be lost."""
        return BUDGET + SHARE * self.written - self.lost

    def book(self, rounds: float) -> None:
        """Add a loss, or a gain if negative."""
        self.lost = max(SHARE * self.written - BUDGET, self.lost + rounds)

    def of_text(self, lost: float, written: int) -> float:
        """Return the rounds that one text of `written` tokens may still lose after losing `lost`."""
        return min(self.left, TEXT + TEXT_SHARE * written - lost)


@dataclass(slots=True)
class Throughput:
    """Tokens and modelled time of recent steps, and the exploration credit that the time earns."""

    _earned: float = BEGIN
    _spent: float = BEGIN
    _credit: float = 0.0
    _batch: int = 1

    @property
    def speedup(self) -> float:
        """Tokens per second relative to plain decoding; at least 1, because drafting can always be skipped."""
        return max(1.0, self._earned / self._spent)

    def step(self, batch: int, cost: float) -> None:
        """Record a step of `batch` sequences that cost `cost` plain steps."""
        self._batch = batch
        self._earned *= MEMORY
        self._spent = MEMORY * self._spent + cost
        self._credit = min(MOST_CREDIT, self._credit + EXPLORE * cost * batch)

    def earn(self, tokens: int) -> None:
        """Record the tokens that one sequence of the step committed."""
        self._earned += tokens / self._batch

    def explore(self, rounds: float) -> bool:
        """Deduct an experiment of this many rounds if the credit allows it. Return whether it does."""
        if rounds > self._credit:
            return False
        self._credit -= rounds
        return True
