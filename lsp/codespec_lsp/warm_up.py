"""Have the daemon prefill a document before its first request, so that models are loaded and KV caches are warm.

Only the document that was opened or visited last is warmed up, and none while a request is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from codespec_lsp.buffer import TextPosition
from codespec_lsp.documents import Document
from codespec_lsp.newest import Newest

DELAY = 0.1  # seconds: skips documents that the user only passes or begins to edit at once


class WarmUps:
    """The warm-ups of one client. `start` begins one and returns its task, or None if the document gets none."""

    def __init__(self, start: Callable[[Document], asyncio.Task[None] | None]) -> None:
        self._start = start
        self._newest = Newest(self._begin)
        self._done: dict[str, int] = {}  # warmed-up revision by URI

    def plan(self, document: Document) -> None:
        """Plan a warm-up of a document, once for each revision."""
        self.stop()
        if self._done.get(document.uri) != document.revision:
            self._newest.plan(document, DELAY)

    def stop(self) -> None:
        """Cancel the planned or running warm-up."""
        self._newest.stop()

    def close(self, document: Document) -> None:
        """Forget a closed document."""
        self._newest.close(document.uri)
        self._done.pop(document.uri, None)

    def _begin(self, document: Document) -> asyncio.Task[None] | None:
        running = self._start(document)
        if running is not None:
            self._done[document.uri] = document.revision
        return running


def likely_position(document: Document) -> TextPosition:
    """Return the likely position of the first request: the end of the last edited row, else of the first row."""
    lines = document.buffer.lines
    row = min(document.edited_rows[0] if document.edited_rows else 0, len(lines) - 1)
    return TextPosition(row, len(lines[row].rstrip("\r\n")))
