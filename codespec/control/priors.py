"""What is expected before anything was learned: how often a drafted token is right, by proposer, position and context.

Knows numbers measured once on a weak pair; what a user's own pair does is learned over them (survival). A context moves
the odds, it does not set them: a pair that is right twice as often is so in every context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

POSITIONS = 16  # positions of a draft that are told apart; beyond, the last one's numbers hold

# Share of first drafted tokens that the target chose too, by context. A drafter's: 62,000 positions of unseen Python
# (DESIGN.md), drawn towards 1,300 rounds in which no lookup was at hand. A lookup's: 1,200 rounds on the same files.
DRAFTER = {
    "closing": 0.75, "block_start": 0.82, "operator": 0.62, "indent": 0.62, "signature": 0.57, "comment": 0.60,
    "import": 0.49, "statement": 0.55, "docstring": 0.48, "identifier": 0.46, "arguments": 0.44, "string": 0.40,
    "free_text": 0.40,
}  # fmt: skip
LOOKUP = {
    "closing": 0.65, "block_start": 0.80, "operator": 0.78, "indent": 0.62, "signature": 0.85, "comment": 0.82,
    "import": 0.80, "statement": 0.85, "docstring": 0.64, "identifier": 0.74, "arguments": 0.80, "string": 0.82,
    "free_text": 0.60,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prior:
    """One proposer's prior: the chance of the first, second, … token (all before it being right; the last number holds
    on), that of the first by context, and the weights that confidence, counters and luck begin with.
    """

    chances: tuple[float, ...] = (0.5, 0.6)
    by_context: Mapping[str, float] = field(default_factory=dict)
    bias: float = 0.0
    confidence: float = 0.5
    rate: float = 0.5
    luck: float = 1.0

    def chance(self, position: int) -> float:
        """The chance of position 0, 1, …"""
        return self.chances[min(position, len(self.chances) - 1)]

    def shift(self, context: str) -> float:
        """How far a context moves the log-odds of the first token; behind it no context was found to matter. 0 where
        nothing is known of it.
        """
        share = self.by_context.get(context)
        return 0.0 if share is None else logit(share) - logit(self.chances[0])


PRIORS = {
    "suffix": Prior((0.75, 0.91), LOOKUP, bias=0.1, confidence=1.1, rate=0.4, luck=1.5),
    "draft_model": Prior((0.54, 0.68, 0.71, 0.77, 0.82), DRAFTER, bias=0.9, confidence=0.85, rate=0.4, luck=1.0),
}
ANY = Prior()


def prior_of(source: str) -> Prior:
    """A proposer's prior; a neutral one for a proposer that nobody measured."""
    return PRIORS.get(source, ANY)


def logit(chance: float) -> float:
    """Log-odds, of a chance kept off 0 and 1."""
    kept = min(0.999, max(0.001, chance))
    return math.log(kept / (1.0 - kept))


def sigmoid(odds: float) -> float:
    """The chance of log-odds."""
    if not -30.0 < odds < 30.0:
        odds = 30.0 if odds > 0.0 else -30.0
    return 1.0 / (1.0 + math.exp(-odds))
