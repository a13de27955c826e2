"""Warm-ups: have the daemon read the prompt at the resting cursor, so that the next key there finds it read.

One at a time, for the document in use. Each text and place is read once, and the next change or request cancels it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from codespec_lsp.documents import Document, Newest

AT_ONCE = 0.1  # seconds after a visit: skips documents and places that the user only passes
IDLE = 1.0  # seconds after the last change or request

Read = Callable[[Document], Coroutine[Any, Any, None]]
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class WarmUps:
    """The planned or running warm-up of one client.

    `read` sends the prompt at the document's likely position to the daemon; `spawn` runs it as a task.
    """

    def __init__(self, read: Read, spawn: Spawn) -> None:
        self._read, self._spawn = read, spawn
        self._newest = Newest(self._begin)
        self._asked: tuple[int, int] | None = None  # the state of the last request, which reads its prompt itself

    def visited(self, document: Document) -> None:
        """Plan a warm-up of the place that the user has moved to, instead of any other."""
        if _state(document) in (document.warmed_up, self._asked):
            self._newest.keep_only(document.uri)
        else:
            self._newest.plan(document, AT_ONCE)

    def changed(self, document: Document) -> None:
        """Cancel the warm-up because of a change, and plan one for when the document is left alone."""
        self._newest.plan(document, IDLE)

    def requested(self, document: Document) -> None:
        """Cancel the warm-up because of a request, and plan one that renews the prompt in idle time."""
        self._asked = _state(document)
        self._newest.plan(document, IDLE)

    def close(self, uri: str) -> None:
        """Cancel the warm-up of a closed document."""
        self._newest.close(uri)

    def _begin(self, document: Document) -> asyncio.Task[None] | None:
        if document.warmed_up == _state(document) or not document.buffer.text.strip():
            return None
        return self._spawn(self._warm_up(document))

    async def _warm_up(self, document: Document) -> None:
        document.warmed_up = _state(document)
        try:
            await self._read(document)
        except asyncio.CancelledError:
            document.warmed_up = None
            raise


def _state(document: Document) -> tuple[int, int]:
    return document.revision, document.rests
