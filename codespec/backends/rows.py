"""The rows of a step: which ids of which sequences are computed, and which of them need logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rows:
    """Ids for positions start, start+1, … of a sequence's slot; the last `keep` rows need logits."""

    slot: int
    start: int
    ids: Sequence[int]
    keep: int = 1

    @property
    def end(self) -> int:
        """The length of the sequence after these rows."""
        return self.start + len(self.ids)


def kept_rows(batch: Sequence[Rows]) -> Iterator[int]:
    """Yield the flat indices of the batch's rows that need logits: the last `keep` of each sequence."""
    end = 0
    for rows in batch:
        end += len(rows.ids)
        yield from range(end - rows.keep, end)
