"""What `codespec bench decode` measures: the cells, the prompts of each, and who decodes which of them.

Not everything everywhere, or it would take a day. The first cell (greedy, one prompt at once) has all prompts, so that
it may carry a headline; the others show how speeds change and have few. codespec decodes all prompts of a cell in every
repeat. The others, who are slower and only compared with, take a different part of a long cell in each repeat, so that
after all repeats everybody has decoded every prompt, still in turn with codespec. Knows names and numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from codespec.bench.decode_prompts import Chosen
from codespec.bench.peers.contest import CODE, GROUPS, LOOPS, TEMPERATURE, Contestant, Task
from codespec.bench.peers.hugging_face import ASSISTED, PLAIN
from codespec.bench.peers.llama_cpp import PLAIN as LLAMA_PLAIN
from codespec.bench.peers.ours import DRAFT_MODEL, FAMILY, NEVER_RIGHT, OFF, ON

SAMPLINGS = {"greedy": 0.0, "sampled": TEMPERATURE}
SHARE, OF = 2, 5  # batches of a long group that another contestant takes in one repeat, of so many
SHARES = {ASSISTED: 1}  # of the slowest by far
LOOPS_SHARE = 4  # loop-free prompts for each other one, outside the first cell
FILLS = 3  # prompts for each place of a batch: as one text ends the next begins


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
    def first(self) -> bool:
        """Whether it has all prompts."""
        return self.temperature == 0.0 and self.concurrency == 1


@dataclass(frozen=True, slots=True)
class Grid:
    """What is measured where nothing else is asked for. In the first cell `limit` prompts whose text is no loop,
    `loops` others, `extra` of each made kind; elsewhere `fewer` loop-free ones and some others. Only the contestants in
    `names`, or all; of them those in `many` where more than one prompt runs, or all. `calibration` tokens are decoded
    to find the fastest variants, in which whoever guesses follows who does not (`follow`), or is tried in all.
    """

    limit: int
    fewer: int
    loops: int
    extra: int
    tokens: int
    concurrency: tuple[int, ...]
    samplings: tuple[str, ...]
    names: tuple[str, ...] = ()
    many: tuple[str, ...] = ()
    calibration: int = 32
    follow: bool = False

    @property
    def cells(self) -> list[Cell]:
        """All of them, in order."""
        return [Cell(sampling, count) for sampling in self.samplings for count in self.concurrency]

    def most(self, sampling: str) -> int:
        """Loop-free prompts that some cell of a sampling needs."""
        cells = [cell for cell in self.cells if cell.sampling == sampling]
        return max(self.limit if cell.first else self._of_code(cell) for cell in cells)

    def takes_part(self, name: str, cell: Cell) -> bool:
        """Whether a contestant is in a cell."""
        names = self.many if cell.concurrency > 1 and self.many else self.names
        return not names or name in names

    def batches(self, chosen: Chosen, cell: Cell) -> Iterator[tuple[Task, ...]]:
        """The prompts of each group of a cell that are decoded as one work: of one kind together, enough to run as many
        at once as the cell wants.
        """
        size = _size(cell)
        most = {CODE: self._of_code(cell), LOOPS: self.fewer // LOOPS_SHARE}
        if cell.first:
            most = dict.fromkeys(GROUPS, max(self.limit, self.loops, self.extra)) | {CODE: self.limit}
        for group, limit in most.items():
            tasks = chosen.group(group, limit)
            for begin in range(0, len(tasks) - cell.concurrency + 1, size):
                yield tuple(tasks[begin : begin + size])

    def _of_code(self, cell: Cell) -> int:
        """Loop-free prompts of a cell that is not the first: whole works."""
        size = _size(cell)
        return max(size, self.fewer // size * size)


def _size(cell: Cell) -> int:
    """Prompts of one work."""
    return cell.concurrency * (FILLS if cell.concurrency > 1 else 1)


FULL = Grid(52, 16, 8, 8, 128, (1, 4, 8, 16), tuple(SAMPLINGS))
SMALL = Grid(
    6,
    6,
    0,
    2,
    64,
    (1, 8, 16),
    ("greedy",),
    (PLAIN, ASSISTED, OFF, ON, NEVER_RIGHT, DRAFT_MODEL, *LLAMA_PLAIN),
    (PLAIN, OFF, ON, DRAFT_MODEL),
    calibration=12,
    follow=True,
)  # of an enlarged target


def takes(contestant: Contestant, group: str, number: int, count: int, repeat: int) -> bool:
    """Whether a contestant decodes batch `number` of `count` of a group in this repeat."""
    if contestant.groups and group not in contestant.groups:
        return False
    if contestant.family == FAMILY or (count < OF and group == CODE):
        return True
    share = SHARES.get(contestant.name, SHARE)
    return (number + share * repeat) % OF < share
