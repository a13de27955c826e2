"""Random pieces at the end of a text: real text and characters that break it. Deterministic by seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from codespec_grammars import ContextTracker

PIECES = [b"(", b")", b"[", b"]", b"{", b"}", b"\n", b"\n    ", b"\r\n", b'"', b"'", b"`", b'"""', b":", b" = ", b"x"]
PIECES += [
    b"foo(",
    b"#",
    b"//",
    b"/*",
    b"*/",
    b";",
    b",",
    b".",
    b"return ",
    b"\\",
    b"\xff",
    b"\xe2\x82",
    b"<<EOF\n",
    b"\t",
]


@dataclass
class Edited:
    """A tracker after incremental edits, and the text to parse from scratch."""

    tracker: ContextTracker
    prefix: bytes
    data: bytes
    suffix: bytes

    def fresh(self, language: str) -> ContextTracker:
        return ContextTracker(language, self.prefix + self.data, self.suffix)


def random_edits(language: str, source: bytes, count: int, seed: int) -> Iterator[Edited]:
    """Make `count` edits and yield after each; move to a new place in the source every 20 edits."""
    chance = random.Random(seed)
    for number in range(count):
        if number % 20 == 0:
            cut = chance.randrange(len(source))
            suffix = source[cut + chance.choice((0, 3, 200)) :] if chance.random() < 0.6 else b""
            edited = Edited(ContextTracker(language, source[:cut], suffix), source[:cut], b"", suffix)
            rest = source[cut : cut + 400]
        size = chance.randrange(1, 16)
        piece = rest[:size] if chance.random() < 0.55 else chance.choice(PIECES)
        rest = rest[size:]
        edited.data += piece
        edited.tracker.advance(piece)
        yield edited
