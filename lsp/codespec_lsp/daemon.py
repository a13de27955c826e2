"""The daemon of one client: connections by its settings, completion streams with retries, restarts, hang detection.

A hanging daemon raises no error: it accepts requests and sends nothing. After two requests without an event and two
unanswered health checks, the user is notified, and requests wait until the daemon answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from io import IncrementalNewlineDecoder
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


class Daemons:
    """The client and the starter for each combination of settings, shared by all editors that this process serves."""

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
            command = self._command(settings.port, with_absolute_paths(arguments)) if starts else None
            try:
                connections = ProvenConnections(settings.url, read_token(settings.token_file), "set codespec.url")
            except ConfigError as error:
                raise DaemonError(error.fault) from error
            client = DaemonClient(connections)
            self._known[key] = (client, Starter(client, command, port=settings.port))
        for known, (_, starter) in self._known.items():
            starter.replaces = known == key or (starter.replaces and known[0] != settings.url)
        return self._known[key]

    async def close(self) -> None:
        """Close all connections. The daemons keep running."""
        for client, starter in self._known.values():
            await starter.close()
            await client.close()


class Daemon:
    """The daemon of one client: its completion streams and reports, for the client's current settings.

    `report` is called with a state and a sentence. The state is ready, starting, failed, or unwell (a failure outside a
    request of the user's).
    """

    def __init__(self, daemons: Daemons, report: Callable[[str, str], None]) -> None:
        self._daemons, self._report = daemons, report
        self._settings = EditorSettings()
        self._found: tuple[DaemonClient, Starter] | None = None
        self._secret = secrets.token_bytes(32)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unanswered = 0  # requests since the last event
        self._checking: asyncio.Task[None] | None = None
        self._answers = asyncio.Event()
        self._answers.set()
        self.last_done: dict[str, Any] = {}

    def use(self, settings: EditorSettings) -> None:
        """Apply new settings, which may name another daemon."""
        self._settings, self._found = settings, None

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
            await self._fill((), body, "\n")
        except DaemonError as error:
            self._report("unwell", str(error))

    async def send_files(self, body: Mapping[str, Any]) -> None:
        """Send the files that drafts in a document may copy from, without starting a daemon. Raises DaemonError."""
        await self._answers.wait()
        await self._parts()[0].send_files(body, self._session_of(body))

    def edits(self, body: EditBody) -> AsyncGenerator[RawEvent, None]:
        """Yield the events of one request for edits. Raises DaemonError."""
        return self._parts()[0].edits(body, self._session_of(body))

    async def stats(self) -> dict[str, Any]:
        """Return the daemon's report about itself. Raises DaemonError."""
        return await self._parts()[0].report(STATS)

    async def health(self) -> Health:
        """Return the daemon's health, without starting one."""
        try:
            return await self._parts()[0].health()
        except DaemonError as error:
            return Health("foreign", str(error), fault=error.fault)

    async def restart(self) -> None:
        """Restart the daemon, if an editor started it. Raises DaemonError."""
        await self._parts()[1].restart()

    def forgive(self) -> None:
        """Reset the starter's count of failed starts, at the user's request."""
        with contextlib.suppress(DaemonError):  # the next request reports it
            self._parts()[1].forgive()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task that `close` cancels."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Stop all streams and other tasks."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stream(self, completions: Sequence[CachedCompletion], body: Mapping[str, Any], newline: str) -> None:
        try:
            await self._fill(completions, body, newline)
        except DaemonError as error:
            self._report("failed", str(error))
        finally:
            for completion in completions:
                if not completion.done:
                    completion.stop()

    async def _fill(self, completions: Sequence[CachedCompletion], body: Mapping[str, Any], newline: str) -> None:
        """Grow the completions until all are done. Waits while the daemon hangs. Raises DaemonError.

        The request is repeated while the daemon asks for that, and after another daemon was started if it died. If it
        died in mid-completion, the next request gets the rest.
        """
        lost = 0
        while lost < MAX_LOST:
            left = {choice: IncrementalNewlineDecoder(None, translate=True) for choice in range(len(completions))}
            await self._answers.wait()
            self._asked()
            try:
                async with contextlib.aclosing(self._parts()[0].events(body, self._session_of(body))) as events:
                    async for name, value in events:
                        self._answered()
                        if name in ("text", "done"):
                            self._report("ready", "")
                            self._take(completions, left, newline, value, done=name == "done")
                if not left:
                    return
                raise Absent("The daemon's stream ended in the middle", "see its log")
            except Absent:
                self._answered()
                lost += 1
                self._report("starting", "The daemon does not answer, so one is started.")
                await self._parts()[1].ensure()
                if any(completion.text for completion in completions):
                    return
            except DaemonError as error:
                self._answered()
                if error.again is None:
                    raise
                self._report("starting", str(error))
                await asyncio.sleep(min(error.again, MAX_WAIT))
        raise DaemonError("The daemon ended repeatedly during a completion", "see its log")

    def _take(
        self,
        completions: Sequence[CachedCompletion],
        left: dict[int, IncrementalNewlineDecoder],
        newline: str,
        value: dict[str, Any],
        *,
        done: bool,
    ) -> None:
        """Apply a `text` or `done` event. `left` has the choices that are not done."""
        choice = value.get("choice", 0)
        if choice not in left:
            return
        completion = completions[choice]
        text = left[choice].decode("" if done else str(value.get("text", "")), final=done)
        completion.grow(text.replace("\n", newline))
        if done:
            del left[choice]
            self.last_done = value
            if value.get("finish_reason") in FINISHED:
                completion.finish()
            else:
                completion.stop()

    def _asked(self) -> None:
        """Count a request, and check the health of a daemon that answers none."""
        self._unanswered += 1
        if self._unanswered >= MAX_UNANSWERED and (self._checking is None or self._checking.done()):
            self._checking = self.spawn(self._check())

    def _answered(self) -> None:
        """Handle a sign of life: a daemon that refuses a request or is gone does not hang either."""
        self._unanswered = 0
        self._answers.set()
        if self._checking is not None:
            self._checking.cancel()

    async def _check(self) -> None:
        """Check the daemon's health: fast typing cancels requests, so missing events alone prove nothing."""
        await asyncio.sleep(PATIENCE)
        checks = 0
        while (await self.health()).state == "silent":
            checks += 1
            if checks == MAX_UNANSWERED:
                self._answers.clear()
                self._report("unwell", HANGS)
            await asyncio.sleep(CHECK_EVERY)
        self._unanswered = 0
        if not self._answers.is_set():
            self._answers.set()
            self._report("ready", "")

    def _session_of(self, body: Mapping[str, Any]) -> str:
        """Return the x-session-id of a document: a hash of its name, with a secret key against guessing."""
        name = str(body.get("document", "")).encode("utf-8", "replace")
        return hashlib.blake2b(name, key=self._secret, digest_size=16).hexdigest()

    def _parts(self) -> tuple[DaemonClient, Starter]:
        """Return the client and the starter for the settings, found once. Raises DaemonError."""
        if self._found is None:
            self._found = self._daemons.find(self._settings)
        return self._found
