"""Choose which part of a long text goes into a prompt, as token windows anchored so that typing does not move them.

Depends on token budgets, lines and the previous window, not on templates. The cost of each function is bounded by
the budget, not by the length of the text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from codespec.text.align import byte_ends
from codespec.text.layout import Layout
from codespec.text.tokenizer import TextTokenizer

MOST_CHARS = 8  # per token; code has 2 to 5, so text clipped at this limit would not fit anyway


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a text, its ids and its start as a character offset; `cut` if it is not the whole text."""

    ids: list[int]
    text: str
    start: int
    cut: bool


def prefix_window(
    tokenizer: TextTokenizer, text: str, budget: int, layout: Layout | None = None, offset: int = 0
) -> Window:
    """Return the end of a text that begins at character `offset` of its document, at most `budget` tokens.

    The window starts at a line. It keeps the start of the layout's last window as long as that fits and fills half of
    the budget. When the window is full, the start advances so that three quarters of the budget are used. Without a
    previous window, the start lies on a grid of a quarter of the budget.
    """
    layout = Layout() if layout is None else layout
    start, ids = _choose_start(tokenizer, text, budget, layout.find_starts(text, offset), offset)
    layout.keep_start(start, text, offset)
    return Window(ids, text[start:], start, start > 0)


def suffix_window(encode: Callable[[str], list[int]], token_bytes: list[bytes], text: str, budget: int) -> Window:
    """Return the beginning of a text, at most `budget` tokens, cut after a line break if possible."""
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


def _choose_start(
    tokenizer: TextTokenizer, text: str, budget: int, anchors: Sequence[int], offset: int
) -> tuple[int, list[int]]:
    """Return the start of a window and its ids."""
    full = False
    for place, anchor in enumerate(anchors):
        ids = tokenizer.encode(text[anchor : anchor + budget * MOST_CHARS + 1])
        fits = len(ids) <= budget and len(text) - anchor <= budget * MOST_CHARS
        if fits and (2 * len(ids) >= budget or anchor + offset == 0):
            return anchor, ids
        full = full or (place == 0 and not fits)
    for start in _starts(tokenizer, text, budget, offset, full):
        ids = tokenizer.encode(text[start:])
        if len(ids) <= budget:
            return start, ids
    start = max(0, len(text) - (budget - 1) // 4)  # a character takes at most four tokens, a dummy prefix one
    return start, tokenizer.encode(text[start:])


def _starts(tokenizer: TextTokenizer, text: str, budget: int, offset: int, full: bool) -> Iterator[int]:
    """Yield candidate starts, widest window first; after a `full` window, those that free a quarter."""
    clipped = max(0, len(text) - budget * MOST_CHARS)
    if not full and not clipped:
        yield 0
    step = max(1, budget // 4 * tokenizer.typical_chars)
    data = text[clipped:].encode("utf-8")
    ends = byte_ends(tokenizer, tokenizer.spell([data])[0])
    first = -(-(clipped + offset) // step) * step - offset  # the grid is relative to the document
    if full:
        gone = ends[: max(0, len(ends) - budget * 3 // 4)]
        first = clipped + len(data[: gone[-1] if gone else 0].decode("utf-8", errors="ignore"))
    for least in range(first, len(text), step):
        start = _line_start(text, least, least + step)
        behind = len(text[clipped:start].encode("utf-8"))
        if start and len(ends) - bisect_right(ends, behind) <= budget:
            yield start


def _line_start(text: str, least: int, limit: int) -> int:
    """Return the first line start at or after `least`, or `least` itself if its line goes beyond `limit`."""
    if least == 0 or text[least - 1] == "\n":
        return least
    start = text.find("\n", least, limit) + 1
    return start or least
