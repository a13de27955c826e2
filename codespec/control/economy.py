"""What time is worth: the tokens that a second brings, and how much of it may be spent on trying things out.

A row that does not pay takes time from later rounds, and those run at today's speed, not at the plain one; so the price
of a second grows with the speed-up reached. Knows modelled seconds only, so equal rounds decide alike on a busy machine
and on an idle one.
"""

from __future__ import annotations

MEMORY = 0.98  # of the speed-up, a step
BEGIN = 16.0  # plain steps that the first ones are weighed against
EXPLORE = 0.01  # share of the time that may go into drafts that are not expected to pay
MOST_CREDIT = 64.0  # plain rounds
TOGETHER, STEPS = 2.0, 32  # drafts of a step that has any, until that is known; and the steps it is a mean of


class Economy:
    """Sums over steps, in units of plain rounds."""

    def __init__(self) -> None:
        self._earned = self._spent = BEGIN
        self._batch = 1
        self._together = TOGETHER
        self._credit = 0.0

    @property
    def speedup(self) -> float:
        """Tokens a modelled second, against plain decoding; at least 1, since drafting nothing is always possible."""
        return max(1.0, self._earned / self._spent)

    def price(self, batch: int, plain: float) -> float:
        """Tokens a second of a step with `batch` sequences whose plain round takes `plain` seconds."""
        return self.speedup * batch / plain

    def together(self, batch: int) -> float:
        """The drafts among which a step of so many sequences shares what drafts cost together."""
        return min(self._together, float(batch))

    def step(self, batch: int, plain: float, extra: float, drafts: int) -> None:
        """Books a step with so many drafts that cost `extra` seconds beside the plain round."""
        self._batch = batch
        if drafts and batch > 1:  # who is alone says nothing of many
            self._together += (drafts - self._together) / STEPS
        cost = 1.0 + extra / plain
        self._earned *= MEMORY
        self._spent = MEMORY * self._spent + cost
        self._credit = min(MOST_CREDIT, self._credit + EXPLORE * cost)

    def earn(self, tokens: int) -> None:
        """Books what one sequence of the step committed."""
        self._earned += tokens / self._batch

    def affords(self, rounds: float) -> bool:
        """Whether an experiment that costs so many plain rounds is affordable."""
        return rounds <= self._credit

    def explore(self, rounds: float) -> bool:
        """The same; if it is, it is paid."""
        if not self.affords(rounds):
            return False
        self._credit -= rounds
        return True
