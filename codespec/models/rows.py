"""What one sequence brings to a forward. Knows ids, slots and positions; knows no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rows:
    """Ids for positions start, start+1, … of a sequence's slot; logits are wanted of the last `keep`."""

    slot: int
    start: int
    ids: Sequence[int]
    keep: int = 1

    @property
    def end(self) -> int:
        """The length of the sequence behind these rows."""
        return self.start + len(self.ids)


def kept_rows(batch: Sequence[Rows]) -> Iterator[int]:
    """The flat rows of a batch whose logits are wanted: the last `keep` of each sequence."""
    end = 0
    for rows in batch:
        end += len(rows.ids)
        yield from range(end - rows.keep, end)
