"""The daemon of one client: connections by its settings, completion streams with retries, restarts, hang detection.

`Daemons` holds one connection for each configuration, shared by all editors that this process serves.

A hanging daemon raises no error: it accepts requests and sends nothing. After two requests without an event and two
unanswered health checks, the user is notified, and requests wait until the daemon answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence, Set
from io import IncrementalNewlineDecoder
from pathlib import Path
from typing import Any

from codespec.api.body import EditBody
from codespec.client.connections import ProvenConnections
from codespec.client.daemon_client import STATS, DaemonClient, Health, RawEvent
from codespec.client.starter import Starter, serve_command, with_absolute_paths
from codespec.errors import Absent, ConfigError, DaemonError
from codespec.user_folders import read_token
from codespec_lsp.completions import CachedCompletion
from codespec_lsp.settings import EditorSettings

MAX_WAIT = 0.5  # seconds between two requests to a daemon that is starting
MAX_LOST = 4  # daemons that may die during one completion; the starter gives up earlier, with a reason
FINISHED = ("stop", "length")
MAX_UNANSWERED = 2  # requests without an event, then unanswered health checks
PATIENCE = 1.0  # seconds for an event
CHECK_EVERY = 2.0  # seconds between two health checks
HANGS = "The daemon does not answer: wait if the machine is busy, else restart the daemon (its process hangs)."

Command = Callable[[int, Sequence[str]], list[str]]
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Daemons:
    """Holds the client and the starter for each combination of settings."""

    def __init__(self, command: Command = serve_command) -> None:
        self._command = command
        self._known: dict[tuple[Any, ...], tuple[DaemonClient, Starter]] = {}

    def find(self, settings: EditorSettings) -> tuple[DaemonClient, Starter]:
        """Return the client and the starter for these settings.

        From now on, only this starter replaces a dead daemon at that address. Raises DaemonError if the token can't be
        read or a relative path can't be resolved.
        """
        key = (settings.url, settings.token_file, settings.start_daemon, settings.model, settings.daemon_arguments)
        if key not in self._known:
            starts = settings.start_daemon and settings.daemon_is_here
            model = ("--model", settings.model) if settings.model else ()
            token = ("--token-file", settings.token_file) if settings.token_file else ()
            arguments = ("--on-demand", *model, *settings.daemon_arguments, *token)
            client = DaemonClient(ProvenConnections(settings.url, _token(settings), "set codespec.url"))
            command = self._command(settings.port, with_absolute_paths(arguments)) if starts else None
            self._known[key] = (client, Starter(client, command, port=settings.port))
        for known, (_, starter) in self._known.items():
            starter.replaces = known == key or (starter.replaces and known[0] != settings.url)
        return self._known[key]

    async def close(self) -> None:
        """Close all connections. The daemons keep running."""
        for client, starter in self._known.values():
            await starter.close()
            await client.close()


def _token(settings: EditorSettings) -> str:
    """Return the daemon's token, or "" if none is set. Raises DaemonError if it can't be read."""
    try:
        return read_token(settings.token_file)
    except ConfigError as error:
        raise DaemonError(error.fault) from error


class ConfiguredDaemon:
    """The daemon for a client's current settings. `workspace` returns the workspace's folders."""

    def __init__(
        self, daemons: Daemons, settings: Callable[[], EditorSettings], workspace: Callable[[], Set[Path]]
    ) -> None:
        self._daemons = daemons
        self._settings = settings
        self._workspace = workspace
        self._secret = secrets.token_bytes(32)

    def events(self, body: Mapping[str, Any]) -> AsyncGenerator[RawEvent, None]:
        """Yield the events of one completion. Raises DaemonError."""
        return self._client()[0].events(body, self._session_of(body))

    async def send_files(self, body: Mapping[str, Any]) -> None:
        """Send the files that drafts in a document may copy from. Raises DaemonError."""
        await self._client()[0].send_files(body, self._session_of(body))

    def edits(self, body: EditBody) -> AsyncGenerator[RawEvent, None]:
        """Yield the events of one request for edits. Raises DaemonError."""
        return self._client()[0].edits(body, self._session_of(body))

    async def stats(self) -> dict[str, Any]:
        """Return the daemon's report about itself. Raises DaemonError."""
        return await self._client()[0].report(STATS)

    async def ensure(self) -> None:
        """Return once a daemon listens. Raises DaemonError."""
        await self._client()[1].ensure()

    async def restart(self) -> None:
        """Restart the daemon, if an editor started it. Raises DaemonError."""
        await self._client()[1].restart()

    async def health(self) -> Health:
        """Return the daemon's health, without starting one."""
        try:
            return await self._client()[0].health()
        except DaemonError as error:
            return Health("foreign", str(error), fault=error.fault)

    def forgive(self) -> None:
        """Reset the starter's count of failed starts, at the user's request."""
        try:
            self._client()[1].forgive()
        except DaemonError:
            return  # the next request reports it

    def _session_of(self, body: Mapping[str, Any]) -> str:
        """Return the x-session-id of a document: a hash of workspace and file, with a secret key against guessing."""
        named = "\n".join([*sorted(map(str, self._workspace())), str(body.get("document", ""))])
        return hashlib.blake2b(named.encode("utf-8", "replace"), key=self._secret, digest_size=16).hexdigest()

    def _client(self) -> tuple[DaemonClient, Starter]:
        return self._daemons.find(self._settings())


class Streamer:
    """The completion streams of one client.

    `report` is called with a state and a sentence. The state is ready, starting, failed, or unwell (a failure outside a
    request of the user's).
    """

    def __init__(self, daemon: ConfiguredDaemon, report: Callable[[str, str], None]) -> None:
        self._daemon = daemon
        self._watched = HangWatch(daemon, report, self.spawn)
        self._report = report
        self.last_done: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self, completions: Sequence[CachedCompletion], body: Mapping[str, Any], newline: str
    ) -> asyncio.Task[None]:
        """Start a stream that fills one completion for each choice. Cancelling the task stops the daemon's work."""
        for completion in completions:
            completion.growing = True
        return self.spawn(self._stream(completions, body, newline))

    async def warm_up(self, body: Mapping[str, Any]) -> None:
        """Have the daemon prefill a prompt. Starts a daemon if necessary."""
        try:
            await self._until_done([], body, "\n")
        except DaemonError as error:
            self._report("unwell", str(error))

    async def send_files(self, body: Mapping[str, Any]) -> None:
        """Send files to a running daemon, without starting one. Raises DaemonError."""
        await self._watched.send_files(body)

    async def close(self) -> None:
        """Stop all streams."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task that `close` cancels."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _stream(self, completions: Sequence[CachedCompletion], body: Mapping[str, Any], newline: str) -> None:
        try:
            await self._until_done(completions, body, newline)
        except DaemonError as error:
            self._report("failed", str(error))
        finally:
            for completion in completions:
                if not completion.done:
                    completion.stop()

    async def _until_done(self, completions: Sequence[CachedCompletion], body: Mapping[str, Any], newline: str) -> None:
        """Retry while the daemon requests it, and start another if it dies, until an answer is complete.

        If the daemon dies in mid-completion, the next request gets the rest.
        """
        lost = 0
        while lost < MAX_LOST:
            try:
                await self._read(completions, body, newline)
                return
            except Absent:
                lost += 1
                self._report("starting", "The daemon does not answer, so one is started.")
                await self._daemon.ensure()
                if any(completion.text for completion in completions):
                    return
            except DaemonError as error:
                if error.again is None:
                    raise
                self._report("starting", str(error))
                await asyncio.sleep(min(error.again, MAX_WAIT))
        raise DaemonError("The daemon ended repeatedly during a completion", "see its log")

    async def _read(self, completions: Sequence[CachedCompletion], body: Mapping[str, Any], newline: str) -> None:
        line_ends = [IncrementalNewlineDecoder(None, translate=True) for _ in completions]
        left = set(range(len(completions)))
        async with contextlib.aclosing(self._watched.events(body)) as events:
            async for name, value in events:
                choice = value.get("choice", 0)
                if name in ("text", "done"):
                    self._report("ready", "")
                if choice not in left:
                    continue
                if name in ("text", "done"):
                    piece = str(value.get("text", "")) if name == "text" else ""
                    text = line_ends[choice].decode(piece, final=name == "done")
                    completions[choice].grow(text.replace("\n", newline))
                if name == "done":
                    left.discard(choice)
                    self._finish(completions[choice], value)
        if left:
            raise Absent("The daemon's stream ended in the middle", "see its log")

    def _finish(self, completion: CachedCompletion, value: dict[str, Any]) -> None:
        self.last_done = value
        if value.get("finish_reason") in FINISHED:
            completion.finish()
        else:
            completion.stop()


class HangWatch:
    """A daemon wrapper that detects hangs.

    `report` is called with a state and a sentence; `spawn` runs a task until the client disconnects.
    """

    def __init__(self, daemon: ConfiguredDaemon, report: Callable[[str, str], None], spawn: Spawn) -> None:
        self._daemon = daemon
        self._report = report
        self._spawn = spawn
        self._unanswered = 0  # requests since the last event
        self._checking: asyncio.Task[None] | None = None
        self._answers = asyncio.Event()
        self._answers.set()

    async def events(self, body: Mapping[str, Any]) -> AsyncGenerator[RawEvent, None]:
        """Yield the events of one completion. Waits while the daemon hangs. Raises DaemonError."""
        await self._answers.wait()
        self._requested()
        try:
            async with contextlib.aclosing(self._daemon.events(body)) as events:
                async for event in events:
                    self._answered()
                    yield event
        except DaemonError:
            self._answered()  # the daemon reported an error or is gone, so it does not hang
            raise

    async def send_files(self, body: Mapping[str, Any]) -> None:
        """Send files to the daemon. Waits while the daemon hangs."""
        await self._answers.wait()
        await self._daemon.send_files(body)

    def _requested(self) -> None:
        self._unanswered += 1
        if self._unanswered >= MAX_UNANSWERED and (self._checking is None or self._checking.done()):
            self._checking = self._spawn(self._check())

    def _answered(self) -> None:
        self._unanswered = 0
        self._answers.set()
        if self._checking is not None:
            self._checking.cancel()

    async def _check(self) -> None:
        """Check the daemon's health: fast typing cancels requests, so missing events alone prove nothing."""
        await asyncio.sleep(PATIENCE)
        checks = 0
        while (await self._daemon.health()).state == "silent":
            checks += 1
            if checks == MAX_UNANSWERED:
                self._answers.clear()
                self._report("unwell", HANGS)
            await asyncio.sleep(CHECK_EVERY)
        self._unanswered = 0
        if not self._answers.is_set():
            self._answers.set()
            self._report("ready", "")
