"""Work for the document that was opened or visited last; a user who clicks through many triggers it for one only.

A warm-up has the daemon prefill the document before its first request, so that models are loaded and KV caches are
warm. None runs while a request is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from codespec_lsp.buffer import TextPosition
from codespec_lsp.documents import Document


class Newest:
    """Delayed work for one document at a time: a newer plan replaces an older one.

    `start` begins the work and returns its task, or None if none is needed.
    """

    def __init__(self, start: Callable[[Document], asyncio.Task[None] | None]) -> None:
        self._start = start
        self._uri = ""
        self._waiting: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None

    def plan(self, document: Document, delay: float) -> None:
        """Begin the work in `delay` seconds, after cancelling anything planned or running."""
        self.stop()
        self._uri = document.uri
        self._waiting = asyncio.get_running_loop().call_later(delay, self._begin, document)

    def stop(self) -> None:
        """Cancel the planned or running work."""
        if self._waiting is not None:
            self._waiting.cancel()
        if self._running is not None:
            self._running.cancel()
        self._waiting = self._running = None

    def close(self, uri: str) -> None:
        """Cancel the work for a closed document, if it is the current one."""
        if uri == self._uri:
            self.stop()

    def _begin(self, document: Document) -> None:
        self._running = self._start(document)


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
