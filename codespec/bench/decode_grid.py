"""What `codespec bench decode` measures: the cells, and which prompts of a cell are decoded as one work.

One prompt at once is a work of its own. Several at once are a work of more prompts than run: as one text ends the next
begins, so that the batch is full. Knows numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from codespec.bench.peers.contest import TEMPERATURE, Task, Work

SAMPLINGS = {"greedy": 0.0, "sampled": TEMPERATURE}
CONCURRENCY = (1, 4, 8, 16)
FILLS = 2  # prompts for each place of a batch


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison: how tokens are chosen, and how many prompts run at once."""

    sampling: str
    concurrency: int

    @property
    def temperature(self) -> float:
        """0 for greedy."""
        return SAMPLINGS[self.sampling]

    @property
    def least(self) -> int:
        """Prompts that it needs."""
        return self.concurrency * (FILLS if self.concurrency > 1 else 1)

    def work(self, tasks: Sequence[Task], limit: int, tokens: int, ends: frozenset[int]) -> list[Work]:
        """The first `limit` tasks, or as many as it needs, in works of one size; what is left over is left out."""
        size, several = self.least, tasks[: max(limit, self.least)]
        starts = range(0, len(several) - size + 1, size)
        return [
            Work(tuple(several[begin : begin + size]), tokens, self.temperature, self.concurrency, ends)
            for begin in starts
        ]
