"""Work for one document at a time, the one that was planned last, and that in a moment: who goes through many documents
has it done for the last one only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from codespec_lsp.documents import Document


class Newest:
    """`start` begins the work for a document; None where it needs none."""

    def __init__(self, start: Callable[[Document], asyncio.Task[None] | None]) -> None:
        self._start = start
        self._uri = ""
        self._waiting: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None

    def plan(self, document: Document, delay: float) -> None:
        """Begins in so many seconds, instead of whatever was planned or is under way."""
        self.stop()
        self._uri = document.uri
        self._waiting = asyncio.get_running_loop().call_later(delay, self._begin, document)

    def stop(self) -> None:
        """Ends whatever is planned or under way."""
        if self._waiting is not None:
            self._waiting.cancel()
        if self._running is not None:
            self._running.cancel()
        self._waiting = self._running = None

    def close(self, uri: str) -> None:
        """A document is gone: the work of others goes on."""
        if uri == self._uri:
            self.stop()

    def _begin(self, document: Document) -> None:
        self._running = self._start(document)
