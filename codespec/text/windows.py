"""Which part of a long text goes into a prompt: windows in tokens, anchored so that typing does not move
them.

Knows token budgets and lines; knows no templates. Nothing here costs more than the budget, however long the
text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from codespec.text.align import byte_ends
from codespec.text.tokenizer import TextTokenizer

MOST_CHARS = 8  # a token; code has 2 to 5, and what is clipped by this before encoding would not fit
_CHARS = 3


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a text, its ids, and the character of the text it starts at; `cut` if it is not all of it."""

    ids: list[int]
    text: str
    start: int
    cut: bool


def prefix_window(tokenizer: TextTokenizer, text: str, budget: int, anchor: int | None = None) -> Window:
    """The end of a text, at most `budget` tokens.

    It starts at a line, on a grid of a quarter of the budget: while text is appended the start stays where
    it is until the window is full, then it moves one step. `anchor`, where an earlier window began, is kept
    while it fits and fills half of the budget, so that the grid may shift (a client that sends a moving
    piece of a document).
    """
    if anchor is not None and 0 < anchor < len(text) <= anchor + budget * MOST_CHARS:
        ids = tokenizer.encode(text[anchor:])
        if len(ids) <= budget <= 2 * len(ids):
            return Window(ids, text[anchor:], anchor, True)
    for start in _starts(tokenizer, text, budget):
        ids = tokenizer.encode(text[start:])
        if len(ids) <= budget:
            return Window(ids, text[start:], start, start > 0)
    start = max(0, len(text) - (budget - 1) // 4)  # a character takes four tokens at most, a dummy prefix one
    return Window(tokenizer.encode(text[start:]), text[start:], start, True)


def suffix_window(encode: Callable[[str], list[int]], token_bytes: list[bytes], text: str, budget: int) -> Window:
    """The beginning of a text, at most `budget` tokens, cut behind a line where there is one."""
    kept = text[: budget * MOST_CHARS]
    ids = encode(kept)
    while len(ids) > budget or (len(kept) < len(text) and not kept.endswith("\n")):
        size = sum(len(token_bytes[number]) for number in ids[:budget])
        shorter = kept.encode("utf-8")[:size].decode("utf-8", errors="ignore")
        if len(shorter) == len(kept):
            shorter = kept[:-1]
        line_end = shorter.rfind("\n") + 1
        if not line_end and len(ids) <= budget:
            break
        kept = shorter[: line_end or len(shorter)]
        ids = encode(kept)
    return Window(ids, kept, 0, len(kept) < len(text))


def _starts(tokenizer: TextTokenizer, text: str, budget: int) -> Iterator[int]:
    """Starts from which a window may fit, the widest first."""
    if len(text) <= budget * MOST_CHARS:
        yield 0
    step = max(1, budget // 4 * _CHARS)
    clipped = max(0, len(text) - budget * MOST_CHARS)
    ends = byte_ends(tokenizer, tokenizer.spell([text[clipped:].encode("utf-8")])[0])
    for least in range(-(-clipped // step) * step, len(text), step):
        start = _line_start(text, least, least + step)
        behind = len(text[clipped:start].encode("utf-8"))
        if start and len(ends) - bisect_right(ends, behind) <= budget:
            yield start


def _line_start(text: str, least: int, limit: int) -> int:
    """The first line start at or after a character; that character itself if its line goes beyond `limit`."""
    if least == 0 or text[least - 1] == "\n":
        return least
    start = text.find("\n", least, limit) + 1
    return start or least
