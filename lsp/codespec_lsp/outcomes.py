"""What a user accepted, for the daemon's memory: once it has stood for a moment, all of it at once.

Pieces of one suggestion, word by word, make one outcome; what is undone at once makes none. Knows texts; whether the
file is one that nothing is sent of, the session knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from codespec_lsp.acceptance import Taken
from codespec_lsp.documents import Document
from codespec_lsp.prompt import MOST_LANGUAGE, MOST_PATH, clean

SETTLE = 2.0  # seconds
MOST_AROUND = 2048  # characters on each side
MOST_TEXT = 16 * 1024

Report = Callable[[Mapping[str, Any]], Coroutine[Any, Any, None]]
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Outcomes:
    """Of one client. `report` gets what has settled; `spawn` runs a task for as long as the client is there."""

    def __init__(self, report: Callable[[Taken], Coroutine[Any, Any, None]], spawn: Spawn) -> None:
        self._report = report
        self._spawn = spawn
        self._settling: dict[str, asyncio.Task[None]] = {}

    def take(self, taken: Taken) -> None:
        """More of a suggestion was accepted: what was known of it before is part of this."""
        known = self._settling.pop(taken.name, None)
        if known is not None:
            known.cancel()
        self._settling[taken.name] = self._spawn(self._settle(taken))

    async def _settle(self, taken: Taken) -> None:
        await asyncio.sleep(SETTLE)
        self._settling.pop(taken.name, None)  # from now on a report is not taken back
        await self._report(taken)


def stands_in(text: str, taken: Taken) -> bool:
    """Whether what was accepted is still in its document."""
    return bool(taken.text.strip()) and taken.text.strip() in text


def outcome_of(taken: Taken, repository: Path, document: Document) -> dict[str, Any]:
    """The report as JSON values."""
    return {
        "root": clean(str(repository))[:MOST_PATH],
        "path": clean(document.path)[:MOST_PATH],
        "language": clean(document.language_id)[:MOST_LANGUAGE],
        "lead": _plain(taken.lead[-MOST_AROUND:]),
        "text": _plain(taken.text[:MOST_TEXT]),
        "following": _plain(taken.following[:MOST_AROUND]),
    }


def _plain(text: str) -> str:
    """As models write it."""
    return clean(text).replace("\r\n", "\n")
