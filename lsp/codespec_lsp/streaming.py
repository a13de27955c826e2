"""Streams completions from the daemon: waits while it starts, has it started where it is gone, notices when it hangs.

A daemon that hangs raises no error: it takes requests and sends nothing. After two requests without an event and two
health checks without an answer the user is told, and requests wait until the daemon answers again. Knows retries and
the daemon's events; knows no documents.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from codespec_lsp.completions import Completion
from codespec_lsp.daemon_client import Absent, DaemonError, Health

MOST_WAIT = 0.5  # seconds between two requests to a daemon that is starting
MOST_LOST = 4  # daemons that may die under one completion: whoever starts them gives up before, and says why
FINISHED = ("stop", "length")
MOST_UNANSWERED = 2  # requests without an event, and then health checks without an answer
PATIENCE = 1.0  # seconds for an event
CHECK_EVERY = 2.0  # seconds between two health checks
HANGS = "The daemon does not answer: wait if the machine is busy, else restart the daemon (its process hangs)."

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Daemon(Protocol):
    """What is asked for completions."""

    def events(self, body: Mapping[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The events of one completion. Raises DaemonError."""
        ...

    async def send_files(self, body: Mapping[str, Any]) -> None:
        """Sends the files that completions of a document may copy from. Raises DaemonError."""
        ...

    async def health(self) -> Health:
        """How the daemon is."""
        ...


class Starter(Protocol):
    """What starts daemons."""

    async def ensure(self) -> None:
        """Returns once a daemon listens. Raises DaemonError."""
        ...


class Streamer:
    """Streams for one client. `report` gets a sentence and a state: ready, starting, failed, or unwell (it failed, but
    nobody asked)."""

    def __init__(self, daemon: Daemon, starter: Starter, report: Callable[[str, str], None]) -> None:
        self.daemon = HangWatch(daemon, report, self.spawn)
        self.starter = starter
        self._report = report
        self.last_done: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, completions: Sequence[Completion], body: Mapping[str, Any], newline: str) -> asyncio.Task[None]:
        """Starts a stream; cancelling the task stops the daemon's work. Each completion is one choice."""
        for completion in completions:
            completion.growing = True
        return self.spawn(self._stream(completions, body, newline))

    async def warm_up(self, body: Mapping[str, Any]) -> None:
        """Has the daemon, which is started if need be, read what it will need."""
        try:
            await self._until_done([], body, "\n")
        except DaemonError as error:
            self._report("unwell", str(error))

    async def send_files(self, body: Mapping[str, Any]) -> None:
        """Sends files to a daemon that is there; none is started for them. Raises DaemonError."""
        await self.daemon.send_files(body)

    async def close(self) -> None:
        """Stops all streams."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs something until it is done or all is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _stream(self, completions: Sequence[Completion], body: Mapping[str, Any], newline: str) -> None:
        try:
            await self._until_done(completions, body, newline)
        except DaemonError as error:
            self._report("failed", str(error))
        finally:
            for completion in completions:
                if not completion.done:
                    completion.stop()

    async def _until_done(self, completions: Sequence[Completion], body: Mapping[str, Any], newline: str) -> None:
        """Requests until a whole answer came. If the daemon dies in the middle of a completion, the rest is left to the
        next request."""
        for _ in range(MOST_LOST):
            try:
                await self._once_ready(completions, body, newline)
                return
            except Absent:
                self._report("starting", "The daemon does not answer, so one is started.")
                await self.starter.ensure()
                if any(completion.text for completion in completions):
                    return
        raise DaemonError("The daemon went away again and again while it was asked: see its log.")

    async def _once_ready(self, completions: Sequence[Completion], body: Mapping[str, Any], newline: str) -> None:
        """One answer, once the daemon takes the request."""
        while True:
            try:
                await self._read(completions, body, newline)
                return
            except DaemonError as error:
                if error.again is None:
                    raise
                self._report("starting", str(error))
                await asyncio.sleep(min(error.again, MOST_WAIT))

    async def _read(self, completions: Sequence[Completion], body: Mapping[str, Any], newline: str) -> None:
        ends = [LineEnds(newline) for _ in completions]
        left = set(range(len(completions)))
        events = self.daemon.events(body)
        async with contextlib.aclosing(events):  # type: ignore[type-var]  # it is a generator
            async for name, value in events:
                choice = value.get("choice", 0)
                if name in ("text", "done"):
                    self._report("ready", "")
                if choice not in left:
                    continue
                if name == "text":
                    completions[choice].grow(ends[choice].feed(str(value.get("text", ""))))
                elif name == "done":
                    left.discard(choice)
                    self._finish(completions[choice], ends[choice], value)
        if left:
            raise Absent("The daemon's stream ended in the middle.")

    def _finish(self, completion: Completion, ends: LineEnds, value: dict[str, Any]) -> None:
        self.last_done = value
        completion.grow(ends.feed("", last=True))
        reason = str(value.get("finish_reason", ""))
        if reason in FINISHED:
            completion.finish(reason)
        else:
            completion.stop()


class HangWatch:
    """A daemon, and whether it still answers. `report` gets a state and a sentence; `spawn` runs a task for as long as
    the client is there."""

    def __init__(self, daemon: Daemon, report: Callable[[str, str], None], spawn: Spawn) -> None:
        self._daemon = daemon
        self._report = report
        self._spawn = spawn
        self._unanswered = 0  # requests since the last event
        self._checking: asyncio.Task[None] | None = None
        self._answers = asyncio.Event()
        self._answers.set()

    async def events(self, body: Mapping[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The events of one completion, which is requested once the daemon answers. Raises DaemonError."""
        await self._answers.wait()
        self._requested()
        events = self._daemon.events(body)
        try:
            async with contextlib.aclosing(events):  # type: ignore[type-var]  # every events() here is a generator
                async for event in events:
                    self._answered()
                    yield event
        except DaemonError:
            self._answered()  # it reported an error, or it is gone: it does not hang
            raise

    async def send_files(self, body: Mapping[str, Any]) -> None:
        """As the daemon does, once it answers."""
        await self._answers.wait()
        await self._daemon.send_files(body)

    def _requested(self) -> None:
        self._unanswered += 1
        if self._unanswered >= MOST_UNANSWERED and (self._checking is None or self._checking.done()):
            self._checking = self._spawn(self._check())

    def _answered(self) -> None:
        self._unanswered = 0
        self._answers.set()
        if self._checking is not None:
            self._checking.cancel()

    async def _check(self) -> None:
        """Checks the daemon's health: who types fast cancels one request after the other, which alone means nothing."""
        await asyncio.sleep(PATIENCE)
        checks = 0
        while (await self._daemon.health()).state == "silent":
            checks += 1
            if checks == MOST_UNANSWERED:
                self._answers.clear()
                self._report("unwell", HANGS)
            await asyncio.sleep(CHECK_EVERY)
        self._unanswered = 0
        if not self._answers.is_set():
            self._answers.set()
            self._report("ready", "")


class LineEnds:
    """Gives every line the document's own end, also where a line end comes in two pieces."""

    def __init__(self, newline: str) -> None:
        self._newline = newline
        self._held = ""

    def feed(self, piece: str, last: bool = False) -> str:
        """The piece as it goes into the document."""
        text = self._held + piece
        self._held = "\r" if text.endswith("\r") and not last else ""
        text = text[: len(text) - len(self._held)].replace("\r\n", "\n").replace("\r", "\n")
        return text if self._newline == "\n" else text.replace("\n", self._newline)
