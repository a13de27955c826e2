"""Find the other places of the user's last change, without a model."""

from __future__ import annotations

import re
from collections.abc import Sequence

from codespec_lsp.buffer import Buffer
from codespec_lsp.edit_types import Change, Hunk, Source

MAX_HUNKS = 20
_WORD = re.compile(r"[^\W\d]\w*")


def find_repeats(change: Change, buffer: Buffer, language: str) -> Sequence[tuple[Source, Hunk]]:
    """Return the lines that still hold a word for which the change wrote another one.

    There are none if the change did anything else, or in a text, whose `language` is "".
    """
    old, new = _WORD.findall(change.old), _WORD.findall(change.new)
    if not language or len(old) != len(new) or _WORD.sub("", change.old) != _WORD.sub("", change.new):
        return ()
    pairs = {(was, now) for was, now in zip(old, new, strict=True) if was != now}
    if len(pairs) != 1:
        return ()
    was, now = pairs.pop()
    word = re.compile(rf"\b{re.escape(was)}\b")
    rows = [row for row, line in enumerate(buffer.lines) if was in line and word.search(line)]
    hunks = [Hunk(row, row + 1, buffer.lines[row], word.sub(now, buffer.lines[row])) for row in rows]
    return [("rename", hunk) for hunk in hunks] if len(hunks) <= MAX_HUNKS else ()
