"""What guessing may cost: one loss budget a text, one exploration credit for all, and the price of a second.

A round here is the time of a plain step divided by the sequences in it: one token's time. All times are modelled ones,
so that equal rounds decide alike on a busy machine and on an idle one. Knows rounds; does not know probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

# Chosen on 78 recorded places of the reference pair (bench/LOG.md): 0.75 rounds and 0.003 a token keep a text whose
# every draft is wrong at 0.98 of plain speed, and cost the others half a percent; no risk limit costs two.
BUDGET = 0.75  # rounds that a text's drafts may lose
SHARE = 0.003  # and of each token that was written
RISK = 0.25  # of what is left, a draft
EXPLORE = 0.003  # share of the time that may go into drafts which are not expected to pay
MOST_CREDIT = 64.0  # rounds of exploration that can be saved up
MEMORY = 0.98  # of the speed-up, a step
BEGIN = 16.0  # plain steps that the first steps are weighed against


def loss_left(lost: float, written: int) -> float:
    """Rounds that may still be lost on a text of so many tokens whose drafts `lost` more than they saved."""
    return BUDGET + SHARE * written - lost


def risk(lost: float, written: int) -> float:
    """Rounds that one draft may risk: a part of what is left, or what the text's drafts have won."""
    return max(RISK * loss_left(lost, written), -lost)


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
