"""Turn gaps into completion requests, and check completions against the removed text and for repetition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codespec.contract.types import Completion, CompletionRequest, Shape
from codespec_lab.corpus.gaps import Gap

Complete = Callable[[Sequence[CompletionRequest]], Sequence[Completion]]
MAX_TOKENS: dict[Shape, int] = {"line": 40, "block": 96, "auto": 64}
BATCH = 8  # concurrent requests of the engine
LOOP_BYTES, LOOP_TIMES = 20, 3


def infill_request(gap: Gap, shape: Shape) -> CompletionRequest:
    """Return the request of an editor whose cursor is at the gap, decoded greedily without speculation."""
    return CompletionRequest(
        prefix=gap.prefix,
        suffix=gap.suffix,
        path=gap.path,
        max_tokens=MAX_TOKENS[shape],
        shape=shape,
        heal=True,
        speculate=False,
    )


def is_exact(written: str, answer: str) -> bool:
    """Return whether a completion equals the file's own text, apart from trailing white space."""
    return written.rstrip() == answer.rstrip()


def begins_right(written: str, answer: str) -> bool:
    """Return whether the first line equals the file's own, apart from trailing white space."""
    return is_exact(written.partition("\n")[0], answer.partition("\n")[0])


def is_loop(text: bytes) -> bool:
    """Return whether some LOOP_BYTES bytes occur LOOP_TIMES times in the text without overlapping."""
    found: dict[bytes, tuple[int, int]] = {}  # piece → (count, end of the last occurrence)
    for start in range(len(text) - LOOP_BYTES + 1):
        piece = text[start : start + LOOP_BYTES]
        times, end = found.get(piece, (0, 0))
        if start >= end:
            if times + 1 == LOOP_TIMES:
                return True
            found[piece] = (times + 1, start + LOOP_BYTES)
    return False
