"""What guessing may cost: one loss budget for all texts and a bound for each, one exploration credit, and the price of
a second.

A round here is the time of a plain step divided by the sequences in it: one token's time. All times are modelled ones,
so that equal rounds decide alike on a busy machine and on an idle one. Knows rounds; does not know probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

BUDGET = 8.0  # rounds that the drafts of all texts together may lose
SHARE = 0.01  # and of each token that was written
TEXT, TEXT_SHARE = 2.0, 0.05  # the same of one text
EXPLORE = 0.003  # share of the time that may go into drafts which are not expected to pay
MOST_CREDIT = 64.0  # rounds of exploration that can be saved up
MEMORY = 0.98  # of the speed-up, a step
BEGIN = 16.0  # plain steps that the first steps are weighed against


@dataclass(slots=True)
class Losses:
    """Rounds that all drafts took beyond the tokens that were right, and the tokens that were written. What a text wins
    pays for others, up to the budget that it began with.
    """

    lost: float = 0.0
    written: int = 0

    @property
    def left(self) -> float:
        """Rounds that may still be lost."""
        return BUDGET + SHARE * self.written - self.lost

    def book(self, rounds: float) -> None:
        """Adds a loss, or a gain below 0."""
        self.lost = max(SHARE * self.written - BUDGET, self.lost + rounds)

    def of_text(self, lost: float, written: int) -> float:
        """Rounds that drafts of one text, of so many tokens, may still lose after having `lost` some."""
        return min(self.left, TEXT + TEXT_SHARE * written - lost)


@dataclass(slots=True)
class Throughput:
    """Tokens and modelled time over the last steps, and the exploration credit that the time gives."""

    _earned: float = BEGIN
    _spent: float = BEGIN
    _credit: float = 0.0
    _batch: int = 1

    @property
    def speedup(self) -> float:
        """Tokens a second against plain decoding; at least 1, since drafting nothing is always possible."""
        return max(1.0, self._earned / self._spent)

    def step(self, batch: int, cost: float) -> None:
        """Books a step of `batch` sequences that took `cost` plain steps of time."""
        self._batch = batch
        self._earned *= MEMORY
        self._spent = MEMORY * self._spent + cost
        self._credit = min(MOST_CREDIT, self._credit + EXPLORE * cost * batch)

    def earn(self, tokens: int) -> None:
        """Books what one sequence of the step committed."""
        self._earned += tokens / self._batch

    def explore(self, rounds: float) -> bool:
        """Pays for an experiment of so many rounds, if the credit allows it."""
        if rounds > self._credit:
            return False
        self._credit -= rounds
        return True
