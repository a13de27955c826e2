"""What the drafts of one text may lose, whatever was expected of them.

Chances are learned from other texts and may be wrong about this one; what its own drafts lost is known. A draft may
risk a part of what is left of its text's stake, or what was won; each token that was right, drafted or only judged,
puts a round back. So where nothing holds a text loses its stake and no more, in many short drafts instead of one long,
and where something does it is soon as free as the costs allow. All in the text's own plain rounds: what plain decoding
takes for one of its tokens, in a batch its share of a step. Knows those; knows no chances.
"""

from __future__ import annotations

STAKE = 0.7  # plain rounds that a text's drafts, and the looks for them, may lose; times the batch: it evens luck out
SHARE = 0.003  # and of each round that was written
RISK = 0.25  # of what is left, a draft
WINNINGS = 8.0  # plain rounds above the stake at most


def left(lost: float, written: int, batch: int) -> float:
    """Plain rounds that may still be lost on a text of so many tokens whose drafts `lost` so much beyond what they
    saved.
    """
    return STAKE * batch + SHARE * written - lost


def risk(lost: float, written: int, batch: int) -> float:
    """Plain rounds that one draft may risk."""
    return max(RISK * left(lost, written, batch), -lost)


def save(lost: float, right: int) -> float:
    """What is lost after so many right tokens."""
    return max(-WINNINGS, lost - right)
