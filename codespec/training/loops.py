"""Whether a completion goes round in circles: the same 20 bytes three times. Knows texts and requests, no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codespec.training.gaps import Gap
from codespec.training.infilling import Complete, batches
from codespec.training.progress import Steps
from codespec.training.rates import Table
from codespec.types import CompletionRequest

LENGTH, TIMES = 20, 3
TOKENS = 64


def is_loop(text: bytes) -> bool:
    """Whether some LENGTH bytes stand in the text TIMES times, without sharing a byte."""
    found: dict[bytes, tuple[int, int]] = {}  # piece -> times, end of the last one
    for start in range(len(text) - LENGTH + 1):
        piece = text[start : start + LENGTH]
        times, end = found.get(piece, (0, 0))
        if start >= end:
            if times + 1 == TIMES:
                return True
            found[piece] = (times + 1, start + LENGTH)
    return False


def loop_share(complete: Complete, gaps: Mapping[str, Sequence[Gap]], steps: Steps) -> Table:
    """Loops over greedy completions of TOKENS tokens behind each gap's prefix, by row."""
    table = Table()
    for row, batch in batches(gaps):
        asked = [
            CompletionRequest(prefix=gap.prefix, path=gap.path, max_tokens=TOKENS, speculate=False) for gap in batch
        ]
        for done in complete(asked):
            table.add(row, is_loop(done.text.encode()))
        steps.advance(len(batch))
    return table
