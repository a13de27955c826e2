"""A daemon that hangs: it is sent requests and says nothing, which is no error anywhere. Two requests without a word,
then two looks at its health without an answer, and the user is told; requests wait from then on until it answers.

Knows the daemon's events and its health; knows no texts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Protocol

from codespec_lsp.daemon_client import DaemonError, Health

MOST_SILENT = 2  # requests without a word, and then looks without an answer
PATIENCE = 1.0  # seconds for a word
LOOK_EVERY = 2.0  # seconds between two looks
SILENT = "The daemon does not answer: wait if the machine is busy, else restart the daemon (its process hangs)."

Keep = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Daemon(Protocol):
    """What is watched."""

    def events(self, body: Mapping[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The events of one completion. Raises DaemonError."""
        ...

    async def health(self) -> Health:
        """How the daemon is."""
        ...


class Watched:
    """A daemon, and whether it still speaks. `tell` gets a state and a sentence; `keep` runs a task as long as its
    client is there."""

    def __init__(self, daemon: Daemon, tell: Callable[[str, str], None], keep: Keep) -> None:
        self._daemon = daemon
        self._tell = tell
        self._keep = keep
        self._unheard = 0  # requests since its last word
        self._looking: asyncio.Task[None] | None = None
        self._speaks = asyncio.Event()
        self._speaks.set()

    async def events(self, body: Mapping[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The events of one completion, which is asked for once the daemon speaks. Raises DaemonError."""
        await self._speaks.wait()
        self._asked()
        events = self._daemon.events(body)
        try:
            async with contextlib.aclosing(events):  # type: ignore[type-var]  # every events() here is a generator
                async for event in events:
                    self._heard()
                    yield event
        except DaemonError:
            self._heard()  # it said so, or it is gone, which is another trouble
            raise

    def _asked(self) -> None:
        self._unheard += 1
        if self._unheard >= MOST_SILENT and (self._looking is None or self._looking.done()):
            self._looking = self._keep(self._look())

    def _heard(self) -> None:
        self._unheard = 0
        self._speaks.set()
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        """Who types fast takes back one request after the other: that alone is no silence."""
        await asyncio.sleep(PATIENCE)
        looks = 0
        while (await self._daemon.health()).state == "silent":
            looks += 1
            if looks == MOST_SILENT:
                self._speaks.clear()
                self._tell("unwell", SILENT)
            await asyncio.sleep(LOOK_EVERY)
        self._unheard = 0
        if not self._speaks.is_set():
            self._speaks.set()
            self._tell("ready", "")
