"""The seam behind which every guess is made. Knows drafts as text; knows nothing of how the target checks them."""

from __future__ import annotations

import collections.abc
from typing import Protocol

from codespec.sequence import Cap, Draft, Sequence

NOTHING = Draft()


class Proposer(Protocol):
    """Anything that guesses what comes next: a lookup, a small model, or several behind one another."""

    name: str

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """One draft a sequence, empty where it has nothing to say or the cap is 0. Does not change the sequences."""
        ...

    def read(self, sequence: Sequence) -> bool:
        """Reads a piece of the sequence's text ahead of its first draft; whether there is more to read."""
        ...

    def commit(self, sequence: Sequence) -> None:
        """The sequence has grown by what the target chose."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence is over; whatever was kept for it may go."""
        ...


def budget_bytes(sequence: Sequence, cap: Cap) -> int:
    """How many bytes `cap` target tokens are likely to spell (a running ratio; the cut in tokens comes after)."""
    return max(1, round(cap.tokens * sequence.bytes_per_token() * 1.25))
