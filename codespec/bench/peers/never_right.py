"""Drafts that are wrong on purpose, as long and as sure of themselves as right ones: what speculation costs where
nothing can be guessed.

Random words in a prompt are no such place: a target copies them, and so a lookup guesses them. Here the proposers do
all their work, and what they found is replaced by characters that nobody writes. Knows drafts; knows no model.
"""

from __future__ import annotations

import collections.abc

from codespec.proposers.base import Proposer
from codespec.proposers.chain import ChainProposer
from codespec.sequence import Cap, Draft, Sequence

NEVER = b"\x01"  # one token of any byte-level vocabulary, and in no text


class Spoiler(ChainProposer):
    """Another proposer's drafts, spoilt."""

    name = "spoiler"

    def __init__(self, proposer: Proposer) -> None:
        super().__init__([proposer])

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """As many drafts of as many units."""
        drafts = super().propose(sequences, caps)
        return [spoil(draft, sequence.bytes_per_token()) for draft, sequence in zip(drafts, sequences, strict=True)]


def spoil(draft: Draft, bytes_per_token: float) -> Draft:
    """A draft of wrong tokens: one for each unit, or of a lookup, whose draft is one unit, about as many as it had."""
    units = len(draft.ends)
    if not units:
        return draft
    tokens = max(1, round(len(draft.text) / bytes_per_token)) if units == 1 else units
    ends = (tokens,) if units == 1 else tuple(range(1, units + 1))
    return Draft(NEVER * tokens, draft.source, ends, draft.confidences)
