"""What the drafts of one text may lose, whatever was expected of them.

Chances are learned from other texts and may be wrong about this one; what its own drafts lost is known. A draft may
risk a part of what is left of its text's stake, or what was won; each token that was right puts a round back, also one
that was judged without being verified: so a text finds out again. Where nothing holds, many short drafts lose about the
stake instead of one long one; where something does, drafts are soon as free as the costs allow.

A round here is the seconds of a plain step divided by the sequences in it: a token's time. A drafter's
forwards are counted as if all sequences drafted as much, what drafts share as among those that usually come, and
reading a prompt for a drafter is not counted. Knows rounds; knows no chances.
"""

from __future__ import annotations

STAKE = 1.0  # plain rounds that a text's drafts, and the looks for them, may lose
TRIES = (
    4  # drafts whose handling comes on top, up to as much again: where that is dear, two wrong ones would end it all
)
SHARE = 0.003  # and of each round that was written
RISK = 0.25  # of what is left, a draft
WINNINGS = 8.0  # plain rounds above the stake at most


def left(lost: float, written: int, handling: float = 0.0) -> float:
    """Plain rounds that may still be lost on a text of so many tokens whose drafts `lost` so much beyond what they
    saved; `handling` are those that a draft takes whatever its length.
    """
    return STAKE + min(STAKE, TRIES * handling) + SHARE * written - lost


def risk(lost: float, written: int, handling: float = 0.0) -> float:
    """Plain rounds that one draft may risk."""
    return max(RISK * left(lost, written, handling), -lost)


def save(lost: float, right: int) -> float:
    """What is lost after so many right tokens."""
    return max(-WINNINGS, lost - right)
