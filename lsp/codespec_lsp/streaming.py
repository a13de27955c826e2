"""Writes texts from the daemon's events, waits while it starts, and has it started where it is gone.

Knows retries and the daemon's events; knows no documents and no clients. Of what goes wrong one sentence is told.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from codespec_lsp.daemon_client import Absent, DaemonError
from codespec_lsp.silence import Daemon, Watched
from codespec_lsp.texts import Text

MOST_WAIT = 0.5  # seconds between two questions to a daemon that is starting
MOST_LOST = 4  # daemons that may die under one text: whoever starts them gives up before, and says why
FINISHED = ("stop", "length")


class Ensurer(Protocol):
    """What writing needs of whoever starts daemons."""

    async def ensure(self) -> None:
        """Returns once a daemon listens. Raises DaemonError."""
        ...


class Writer:
    """Writes for one client. `tell` gets a state (ready, starting, failed; unwell: it failed, but nobody asked) and a
    sentence."""

    def __init__(self, daemon: Daemon, starter: Ensurer, tell: Callable[[str, str], None]) -> None:
        self.daemon = Watched(daemon, tell, self.keep)
        self.starter = starter
        self._tell = tell
        self.last_done: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, texts: Sequence[Text], body: Mapping[str, Any], newline: str) -> asyncio.Task[None]:
        """Begins to write; cancelling the task stops the daemon's work. Each text is one choice."""
        for text in texts:
            text.growing = True
        return self.keep(self._write(texts, body, newline))

    async def warm_up(self, body: Mapping[str, Any]) -> None:
        """Has the daemon, which is started if need be, read what it will need."""
        try:
            await self._until_done([], body, "\n")
        except DaemonError as error:
            self._tell("unwell", str(error))

    async def close(self) -> None:
        """Stops all that is being written."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs something until it is done or all is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self, texts: Sequence[Text], body: Mapping[str, Any], newline: str) -> None:
        try:
            await self._until_done(texts, body, newline)
        except DaemonError as error:
            self._tell("failed", str(error))
        finally:
            for text in texts:
                if not text.done:
                    text.stop()

    async def _until_done(self, texts: Sequence[Text], body: Mapping[str, Any], newline: str) -> None:
        """Asks until an answer came whole. A daemon that dies is not asked for the rest of what it began: the next
        request does that."""
        for _ in range(MOST_LOST):
            try:
                await self._once(texts, body, newline)
                return
            except Absent:
                self._tell("starting", "The daemon does not answer, so one is started.")
                await self.starter.ensure()
                if any(text.text for text in texts):
                    return
        raise DaemonError("The daemon went away again and again while it was asked: see its log.")

    async def _once(self, texts: Sequence[Text], body: Mapping[str, Any], newline: str) -> None:
        """One answer, once the daemon takes the question."""
        while True:
            try:
                await self._read(texts, body, newline)
                return
            except DaemonError as error:
                if error.again is None:
                    raise
                self._tell("starting", str(error))
                await asyncio.sleep(min(error.again, MOST_WAIT))

    async def _read(self, texts: Sequence[Text], body: Mapping[str, Any], newline: str) -> None:
        ends = [LineEnds(newline) for _ in texts]
        left = set(range(len(texts)))
        events = self.daemon.events(body)
        async with contextlib.aclosing(events):  # type: ignore[type-var]  # it is a generator
            async for name, value in events:
                choice = value.get("choice", 0)
                if name in ("text", "done"):
                    self._tell("ready", "")
                if choice not in left:
                    continue
                if name == "text":
                    texts[choice].grow(ends[choice].feed(str(value.get("text", ""))))
                elif name == "done":
                    left.discard(choice)
                    self._end(texts[choice], ends[choice], value)
        if left:
            raise Absent("The daemon's stream ended in the middle.")

    def _end(self, text: Text, ends: LineEnds, value: dict[str, Any]) -> None:
        self.last_done = value
        text.grow(ends.feed("", last=True))
        reason = str(value.get("finish_reason", ""))
        if reason in FINISHED:
            text.end(reason)
        else:
            text.stop()


class LineEnds:
    """Gives every line the document's own end, also where one comes in two pieces."""

    def __init__(self, newline: str) -> None:
        self._newline = newline
        self._held = ""

    def feed(self, piece: str, last: bool = False) -> str:
        """The piece as it goes into the document."""
        text = self._held + piece
        self._held = "\r" if text.endswith("\r") and not last else ""
        text = text[: len(text) - len(self._held)].replace("\r\n", "\n").replace("\r", "\n")
        return text if self._newline == "\n" else text.replace("\n", self._newline)
