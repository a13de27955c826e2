"""What stays of a document's prompt from one keystroke to the next, so that the next prompt begins like the last.

Knows places in texts and time; knows no tokens and no models. What a prompt looks like depends on its document's
layout, and on nothing else that was asked before.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from codespec.types import Owner

HEAD = 128  # characters by which the beginning of a window is found again
PLACES = 4  # in one document
PAUSE = 5.0  # seconds without a prompt, after which typing counts as over
OLDEST = 60.0  # seconds that snippets stay, however fast somebody types
MOST = 256  # documents
Snippets = Sequence[tuple[str, str]]  # path and text


@dataclass(slots=True)
class Block:
    """The ids that stand before a prompt for other files' snippets, and what they were made of."""

    path: str = ""
    snippets: tuple[tuple[str, str], ...] = ()
    ids: list[int] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    made: float = 0.0  # seconds


@dataclass(slots=True)
class Layout:
    """Where one document's windows lie. `starts` are the characters of the document at which windows of its prefix
    began, each with the text there, because edits further up move the place and not the text; the last one first, and
    a few before it, for who jumps elsewhere and back. `split` says that prefix and suffix did not fit together.
    `suffix` is the text of the suffix's window. `now` and `used`, the prompt before, are seconds.
    """

    starts: list[tuple[int, str]] = field(default_factory=list)
    split: bool = False
    suffix: str = ""
    block: Block = field(default_factory=Block)
    used: float = 0.0
    now: float = 0.0

    def find_starts(self, prefix: str, offset: int) -> list[int]:
        """The characters of `prefix` (which begins at character `offset` of the document) where windows began; those
        that are not there any more are left out.
        """
        found = [_find(head, prefix, max(0, start - offset)) for start, head in self.starts]
        return [place for place in found if place >= 0]

    def keep_start(self, start: int, prefix: str, offset: int) -> None:
        """Remembers where a window of `prefix` begins."""
        place, head = offset + start, prefix[start : start + HEAD]
        others = [one for one in self.starts if one[0] != place and one[1] != head]
        self.starts = [(place, head), *others][:PLACES]

    def keeps_block(self, path: str, snippets: Snippets, room: int) -> bool:
        """Whether the snippets of the last prompt stand before the next one too: they are the same, or others came
        while typing goes on, which would cost a whole prefill for little.
        """
        block = self.block
        if block.path != path or len(block.ids) > room or bool(block.snippets) != bool(snippets):
            return False
        typing = self.now - self.used <= PAUSE and self.now - block.made <= OLDEST
        return typing or block.snippets == tuple(snippets)


class Layouts:
    """The layouts of the documents that were worked on last; `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._layouts: OrderedDict[Owner, Layout] = OrderedDict()

    def __len__(self) -> int:
        return len(self._layouts)

    def of(self, owner: Owner) -> Layout:
        """A document's layout, which each scope has its own of; a new one for "", where nothing is known of what came
        before.
        """
        if not owner.document:
            return Layout()
        layout = self._layouts.setdefault(owner, Layout())
        layout.now = self.clock()
        self._layouts.move_to_end(owner)
        if len(self._layouts) > MOST:
            self._layouts.popitem(last=False)
        return layout


def _find(head: str, text: str, expected: int) -> int:
    """Where `head` stands in a text, the nearest place to the expected one; -1 where it does not."""
    if not head or text.startswith(head, expected):
        return expected if head else -1
    before, behind = text.rfind(head, 0, expected + len(head)), text.find(head, expected)
    if min(before, behind) < 0:
        return max(before, behind)
    return before if expected - before <= behind - expected else behind
