"""Keep a document's prompt layout from one keystroke to the next, so that consecutive prompts share a prefix.

A prompt depends on its own document's layout and on no other earlier request. Independent of tokens and models.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from codespec.contract.types import Owner

HEAD = 128  # characters that identify the start of a window
PLACES = 4  # starts remembered for one document
PAUSE = 5.0  # seconds without a prompt after which typing counts as paused
OLDEST = 60.0  # seconds that snippets stay at most, however fast the user types
MOST = 256  # documents
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
    window. `now` is the time of this prompt and `used` that of the previous one, in seconds.
    """

    starts: list[tuple[int, str]] = field(default_factory=list)
    split: bool = False
    suffix: str = ""
    block: Block = field(default_factory=Block)
    used: float = 0.0
    now: float = 0.0

    def find_starts(self, prefix: str, offset: int) -> list[int]:
        """Return the characters of `prefix` at which windows began, without those whose text is gone.

        `prefix` begins at character `offset` of the document.
        """
        found = [_find(head, prefix, max(0, start - offset)) for start, head in self.starts]
        return [place for place in found if place >= 0]

    def keep_start(self, start: int, prefix: str, offset: int) -> None:
        """Remember the start of a window of `prefix`."""
        place, head = offset + start, prefix[start : start + HEAD]
        others = [one for one in self.starts if one[0] != place and one[1] != head]
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
        if len(self._layouts) > MOST:
            self._layouts.popitem(last=False)
        return layout


def _find(head: str, text: str, expected: int) -> int:
    """Return the offset of `head` in a text, the one nearest to `expected`, or -1 if absent."""
    if not head or text.startswith(head, expected):
        return expected if head else -1
    before, behind = text.rfind(head, 0, expected + len(head)), text.find(head, expected)
    if min(before, behind) < 0:
        return max(before, behind)
    return before if expected - before <= behind - expected else behind
