"""Delayed work for one document at a time: a newer plan replaces an older one.

A user who clicks through many documents triggers the work for the last one only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from codespec_lsp.documents import Document


class Newest:
    """Schedules work for one document. `start` begins the work and returns its task, or None if none is needed."""

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
