"""Has the daemon read a document's text before the first request, so that the models are loaded and their caches full.

One document at a time: the one that was opened or visited last, and none while a request is open. Does not know what is
sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from codespec_lsp.buffer import Position
from codespec_lsp.documents import Document
from codespec_lsp.newest import Newest

DELAY = 0.1  # seconds: who opens many files, or types at once, needs no warm-up of each


class WarmUps:
    """Of one client. `start` begins a warm-up; None where a document gets none."""

    def __init__(self, start: Callable[[Document], asyncio.Task[None] | None]) -> None:
        self._start = start
        self._newest = Newest(self._begin)
        self._done: dict[str, int] = {}  # revisions

    def plan(self, document: Document) -> None:
        """A document is in use: it is warmed up in a moment, once as it is now."""
        self.stop()
        if self._done.get(document.uri) != document.revision:
            self._newest.plan(document, DELAY)

    def stop(self) -> None:
        """There is something better to do."""
        self._newest.stop()

    def close(self, document: Document) -> None:
        """The document is gone."""
        self._newest.close(document.uri)
        self._done.pop(document.uri, None)

    def _begin(self, document: Document) -> asyncio.Task[None] | None:
        running = self._start(document)
        if running is not None:
            self._done[document.uri] = document.revision
        return running


def likely_position(document: Document) -> Position:
    """Where the first request may come from: the end of the row that was edited last, else of the first one."""
    lines = document.buffer.lines
    row = min(document.edited_rows[0] if document.edited_rows else 0, len(lines) - 1)
    return Position(row, len(lines[row].rstrip("\r\n")))
