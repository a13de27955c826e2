"""Choose which part of a long text goes into a prompt, and keep that layout while the user types.

A window is anchored, so consecutive prompts of a document share a prefix. A prompt depends on its own document's
layout and on no other earlier request. The cost is bounded by the token budget, not by the length of the text.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from codespec.api.types import Owner
from codespec.text.align import byte_ends
from codespec.text.tokenizer import TextTokenizer

HEAD = 128  # characters that identify the start of a window
PLACES = 4  # starts remembered for one document
MAX_TAIL = 64  # tokens
PAUSE = 5.0  # seconds without a prompt after which typing counts as paused
OLDEST = 60.0  # maximum seconds to keep snippets while the user types
MAX = 256  # documents
Snippets = Sequence[tuple[str, str]]  # (path, text)


@dataclass(slots=True)
class Block:
    """Ids of other files' snippets, put before a prompt, and the inputs they were built from."""

    path: str = ""
    snippets: tuple[tuple[str, str], ...] = ()
    ids: list[int] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    made: float = 0.0  # seconds


@dataclass(slots=True)
class Layout:
    """Positions of one document's windows.

    `starts` are the characters of the document at which windows of its prefix began, each with the text there, because
    edits further up move the position but not the text. The most recent is first; older ones serve a user who jumps
    elsewhere and back. `split` is true if prefix and suffix did not fit together. `suffix` is the text of the suffix
    window, `head` that of the prefix window before its tail. `now` is the time of this prompt and `used` that of
    the previous one, in seconds.
    """

    starts: list[tuple[int, str]] = field(default_factory=list)
    split: bool = False
    suffix: str = ""
    head: str = ""
    block: Block = field(default_factory=Block)
    used: float = 0.0
    now: float = 0.0

    def find_starts(self, prefix: str, offset: int) -> list[int]:
        """Return the characters of `prefix` at which windows began, without those that are gone.

        `prefix` begins at character `offset` of the document.
        """
        offsets = [_find(head, prefix, max(0, start - offset)) for start, head in self.starts]
        return [place for place in offsets if place >= 0]

    def keep_start(self, start: int, prefix: str, offset: int) -> None:
        """Remember the start of a window of `prefix`."""
        place, head = offset + start, prefix[start : start + HEAD]
        others = [known for known in self.starts if known[0] != place and known[1] != head]
        self.starts = [(place, head), *others][:PLACES]

    def keeps_block(self, path: str, snippets: Snippets, room: int) -> bool:
        """Return whether the next prompt reuses the snippets of the last one.

        It does if they are the same, or if they changed while the user keeps typing: new ones would cost a whole
        prefill for little.
        """
        block = self.block
        if block.path != path or len(block.ids) > room or bool(block.snippets) != bool(snippets):
            return False
        typing = self.now - self.used <= PAUSE and self.now - block.made <= OLDEST
        return typing or block.snippets == tuple(snippets)


class Layouts:
    """Layouts of the most recently edited documents; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._layouts: OrderedDict[Owner, Layout] = OrderedDict()

    def __len__(self) -> int:
        return len(self._layouts)

    def of(self, owner: Owner) -> Layout:
        """Return the layout of a document, separate for each scope; a new one if the document is ""."""
        if not owner.document:
            return Layout()
        layout = self._layouts.setdefault(owner, Layout())
        layout.now = self.clock()
        self._layouts.move_to_end(owner)
        if len(self._layouts) > MAX:
            self._layouts.popitem(last=False)
        return layout


def _find(head: str, text: str, expected: int) -> int:
    """Return the offset of `head` in a text, the one nearest to `expected`, or -1 if absent."""
    if not head:
        return -1
    before, after = text.rfind(head, 0, expected + len(head)), text.find(head, expected)
    if min(before, after) < 0:
        return max(before, after)
    return before if expected - before <= after - expected else after


MAX_CHARS = 8  # per token; code has 2 to 5, so text clipped at this limit would not fit anyway


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

    The window starts at a line. It keeps the start of the layout's last window while that fits and fills half of the
    budget. When the window is full, the start advances until three quarters of the budget are used. Without a
    previous window, the start lies on a grid of a quarter of the budget.
    """
    layout = Layout() if layout is None else layout
    start, ids = _choose_start(tokenizer, text, budget, layout.find_starts(text, offset), offset)
    layout.keep_start(start, text, offset)
    return Window(ids, text[start:], start, start > 0)


def split_tail(
    tokenizer: TextTokenizer, text: str, budget: int, layout: Layout, *, keep: bool, renew: bool
) -> tuple[list[int], list[int]] | None:
    """Return the ids of a prefix window in two parts, head and tail, or None without a good place to split.

    A prompt with the suffix between them gives the tail as the beginning of the middle, so typing only appends to it.
    The tail begins with the cursor's line, or with the last word of a very long line. With `keep`, it begins where the
    last prompt's did while the head is the same and the tail has at most MAX_TAIL tokens (half as many to `renew`), so
    that new lines append too. It is encoded like the middle that a model writes. Both parts together may have more ids
    than the text, but at most `budget`.
    """
    most = MAX_TAIL // 2 if renew else MAX_TAIL
    kept = len(layout.head) if keep and text.startswith(layout.head) else 0
    for start in (kept, text.rfind("\n") + 1, text.rfind(" ")):
        if start > 0 and len(text) - start <= most * MAX_CHARS:
            tail = tokenizer.encode_inside(text[start:])
            if len(tail) <= most:
                head = tokenizer.encode(text[:start])
                layout.head = text[:start] if len(head) + len(tail) <= budget else ""
                return (head, tail) if layout.head else None
    layout.head = ""
    return None


def suffix_window(encode: Callable[[str], list[int]], token_bytes: list[bytes], text: str, budget: int) -> Window:
    """Return the beginning of a text, at most `budget` tokens, cut after a line break if possible."""
    kept = text[: budget * MAX_CHARS]
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
        ids = tokenizer.encode(text[anchor : anchor + budget * MAX_CHARS + 1])
        fits = len(ids) <= budget and len(text) - anchor <= budget * MAX_CHARS
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
    clipped = max(0, len(text) - budget * MAX_CHARS)
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
        skipped = len(text[clipped:start].encode("utf-8"))
        if start and len(ends) - bisect_right(ends, skipped) <= budget:
            yield start


def _line_start(text: str, least: int, limit: int) -> int:
    """Return the first line start at or after `least`, or `least` itself if its line goes beyond `limit`."""
    if least == 0 or text[least - 1] == "\n":
        return least
    start = text.find("\n", least, limit) + 1
    return start or least
