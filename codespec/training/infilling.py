"""How often a target writes what the file says, between the text before the cursor and the text after it.

Knows gaps and completions; knows no model and no drafter. Greedy, as an editor asks: with the text after the cursor,
and healed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from codespec.models.slots import common_prefix
from codespec.training.gaps import Gap
from codespec.training.progress import Steps
from codespec.training.rates import Table
from codespec.types import Completion, CompletionRequest, Shape

Complete = Callable[[Sequence[CompletionRequest]], Sequence[Completion]]
TOKENS: dict[Shape, int] = {"line": 40, "block": 96, "auto": 64}
BATCH = 8


@dataclass(slots=True)
class Filled:
    """Gaps filled exactly, gaps whose first line is right, and bytes right before the first wrong one, by row.

    `outcomes` are the exact ones case by case; `notes` are the engine's, for example that the model cannot use the text
    after the cursor.
    """

    exact: Table = field(default_factory=Table)
    first_line: Table = field(default_factory=Table)
    bytes_right: Table = field(default_factory=Table)
    outcomes: list[bool] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, row: str, gap: Gap, done: Completion) -> None:
        """Judges one completion."""
        self.outcomes.append(is_exact(done.text, gap.answer))
        self.exact.add(row, self.outcomes[-1])
        self.first_line.add(row, begins_right(done.text, gap.answer))
        answer = gap.answer.rstrip().encode()
        self.bytes_right.add(row, common_prefix(done.text.encode(), answer), len(answer))
        self.notes.extend(note for note in done.stats.notes if note not in self.notes)


def is_exact(written: str, answer: str) -> bool:
    """Whether a completion is the file's own text, white space at its end aside."""
    return written.rstrip() == answer.rstrip()


def begins_right(written: str, answer: str) -> bool:
    """Whether the first line is the file's own, white space at its end aside."""
    return is_exact(written.partition("\n")[0], answer.partition("\n")[0])


def infill_request(gap: Gap, shape: Shape) -> CompletionRequest:
    """A gap as an editor asks for it, in plain decoding."""
    return CompletionRequest(
        prefix=gap.prefix,
        suffix=gap.suffix,
        path=gap.path,
        max_tokens=TOKENS[shape],
        shape=shape,
        heal=True,
        speculate=False,
    )


def fill(complete: Complete, gaps: Mapping[str, Sequence[Gap]], shape: Shape, steps: Steps) -> Filled:
    """Has all gaps filled, and judges."""
    filled = Filled()
    for row, batch in batches(gaps):
        for gap, done in zip(batch, complete([infill_request(gap, shape) for gap in batch]), strict=True):
            filled.add(row, gap, done)
        steps.advance(len(batch))
    return filled


def batches(gaps: Mapping[str, Sequence[Gap]]) -> Iterator[tuple[str, Sequence[Gap]]]:
    """Each row's gaps, as many at once as the engine runs."""
    for row, found in gaps.items():
        for start in range(0, len(found), BATCH):
            yield row, found[start : start + BATCH]
