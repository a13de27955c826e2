"""Connect one client to the daemon: completion streams with retries, warm-ups, lookup files, hang detection.

A hanging daemon raises no error: it accepts requests and sends nothing. After two requests without an event and two
unanswered health checks, the user is notified, and new requests are held back until the daemon answers again.

Before the first key press, the daemon prefills the prompt at the cursor (a warm-up) and receives files to copy drafts
from: other open files, and files of the repository that the document imports or that are in its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import IncrementalNewlineDecoder
from itertools import chain
from typing import Any

from codespec.api.body import EditBody, FileBody, LookupBody
from codespec.api.limits import MAX_SIDE
from codespec.client.connections import ProvenConnections
from codespec.client.daemon_client import EDIT, STATS, DaemonClient, Health, RawEvent
from codespec.client.starter import Starter, serve_command, with_absolute_paths
from codespec.errors import Absent, ConfigError, DaemonError
from codespec.exclusions.secrets import without_secrets
from codespec.user_folders import read_token
from codespec_lsp.completions import CachedCompletion
from codespec_lsp.documents import Document
from codespec_lsp.imports import MAX_BESIDE, find_files, import_rows, read_text
from codespec_lsp.prompt import RequestContext, clean
from codespec_lsp.settings import EditorSettings

MAX_RETRY_S = 0.5  # seconds between two requests to a daemon that is starting
MAX_LOST = 4  # daemons that may die during one completion
FINISHED = ("stop", "length")
MAX_UNANSWERED = 2  # requests without an event before the health checks; then health checks without an answer
EVENT_TIMEOUT_S = 1.0  # seconds for an event
HEALTH_INTERVAL_S = 2.0  # seconds between two health checks
HANGS = "The daemon does not answer: wait if the machine is busy, else restart the daemon (its process hangs)."
VISIT_DELAY_S = 0.1  # seconds from a visit to a warm-up: skips documents and positions that the user only passes
IDLE_DELAY_S = 1.0  # seconds from the last change or request to a warm-up
FILES_DELAY_S = 0.3  # seconds from a visit to the lookup files: skips documents that the user only passes
FILES_RETRY_S = 2.0  # seconds before another attempt to send files if no daemon answers
TRIES = 60
MAX_TOGETHER = 256 * 1024  # characters of all lookup files

Command = Callable[[int, Sequence[str]], list[str]]


class Daemons:
    """Holds a client and a starter for each combination of settings, shared by all editors that this process serves."""

    def __init__(self, command: Command = serve_command) -> None:
        self._command = command
        self._known: dict[tuple[Any, ...], tuple[DaemonClient, Starter]] = {}

    def find(self, settings: EditorSettings) -> tuple[DaemonClient, Starter]:
        """Return the client and the starter for the given settings.

        After this call, only the returned starter replaces a dead daemon at the URL in the settings. Raises DaemonError
        if the token can't be read or a relative path can't be resolved.
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
    """The daemon for one client's current settings. `report` shows the user a state and a sentence."""

    def __init__(self, daemons: Daemons, report: Callable[[str, str], None]) -> None:
        self._daemons, self._report = daemons, report
        self._settings = EditorSettings()
        self._found: tuple[DaemonClient, Starter] | None = None
        self._secret = secrets.token_bytes(32)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unanswered = 0  # requests since the last event
        self._checking: asyncio.Task[None] | None = None
        self._answers = asyncio.Event()  # cleared while the daemon hangs
        self._answers.set()
        self.last_done: dict[str, Any] = {}

    def use(self, settings: EditorSettings) -> None:
        """Apply new settings, which may name another daemon."""
        self._settings, self._found = settings, None

    def start(
        self, completions: Sequence[CachedCompletion], body: Mapping[str, Any], newline: str
    ) -> asyncio.Task[None]:
        """Start to stream one choice into each completion. Cancelling the returned task stops the daemon's work."""
        for completion in completions:
            completion.growing = True
        return self.spawn(self._stream(completions, body, newline))

    async def warm_up(self, body: Mapping[str, Any]) -> None:
        """Let the daemon prefill a prompt, after starting a daemon if none is running."""
        try:
            await self._fill((), body, "\n")
        except DaemonError as error:
            self._report("unwell", str(error))

    async def send_files(self, body: Mapping[str, Any]) -> None:
        """Send a running daemon the files that drafts may be copied from. Raises DaemonError if no daemon runs."""
        await self._answers.wait()
        await self._parts()[0].send_files(body, self._session_of(body))

    def edits(self, body: EditBody) -> AsyncGenerator[RawEvent, None]:
        """Yield the events of one request for edits. Raises DaemonError."""
        return self._parts()[0].events(body, self._session_of(body), EDIT)

    async def stats(self) -> dict[str, Any]:
        """Return the daemon's status report. Raises DaemonError."""
        return await self._parts()[0].report(STATS)

    async def health(self) -> Health:
        """Return the daemon's health, without starting a daemon."""
        try:
            return await self._parts()[0].health()
        except DaemonError as error:
            return Health("foreign", str(error), fault=error.fault)

    async def restart(self) -> None:
        """Restart the daemon if an editor started it. Raises DaemonError."""
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
                    completion.end(done=False)

    async def _fill(self, completions: Sequence[CachedCompletion], body: Mapping[str, Any], newline: str) -> None:
        """Extend the completions from a stream until all are done. Waits while the daemon hangs. Raises DaemonError.

        The request is repeated while the daemon asks for a retry, and also after a dead daemon was replaced, unless
        some text had already arrived: the editor's next request then continues that text.
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
                raise Absent("The daemon's stream broke off", "read the daemon's log")
            except Absent:
                self._answered()
                lost += 1
                self._report("starting", "The daemon does not answer, so one is started.")
                await self._parts()[1].ensure()
                if any(completion.text for completion in completions):
                    return
            except DaemonError as error:
                self._answered()
                if error.retry_after is None:
                    raise
                self._report("starting", str(error))
                await asyncio.sleep(min(error.retry_after, MAX_RETRY_S))
        raise DaemonError("The daemon exited repeatedly during completion", "read daemon-PORT.log in the state folder")

    def _take(
        self,
        completions: Sequence[CachedCompletion],
        left: dict[int, IncrementalNewlineDecoder],
        newline: str,
        value: dict[str, Any],
        *,
        done: bool,
    ) -> None:
        """Apply a `text` or `done` event to a completion. `left` has a decoder for each choice that is not done."""
        choice = value.get("choice", 0)
        if choice not in left:
            return
        completion = completions[choice]
        text = left[choice].decode("" if done else str(value.get("text", "")), final=done)
        completion.grow(text.replace("\n", newline))
        if done:
            del left[choice]
            self.last_done = value
            completion.end(done=value.get("finish_reason") in FINISHED)

    def _asked(self) -> None:
        """Count a request, and start health checks if too many requests have received no event."""
        self._unanswered += 1
        if self._unanswered >= MAX_UNANSWERED and (self._checking is None or self._checking.done()):
            self._checking = self.spawn(self._check())

    def _answered(self) -> None:
        """Stop the health checks: an event, a refusal or a closed port shows that the daemon does not hang."""
        self._unanswered = 0
        self._answers.set()
        if self._checking is not None:
            self._checking.cancel()

    async def _check(self) -> None:
        """Detect a hanging daemon by health checks, because requests that fast typing cancels get no events."""
        await asyncio.sleep(EVENT_TIMEOUT_S)
        checks = 0
        while (await self.health()).state == "silent":
            checks += 1
            if checks == MAX_UNANSWERED:
                self._answers.clear()
                self._report("unwell", HANGS)
            await asyncio.sleep(HEALTH_INTERVAL_S)
        self._unanswered = 0
        if not self._answers.is_set():
            self._answers.set()
            self._report("ready", "")

    def _session_of(self, body: Mapping[str, Any]) -> str:
        """Return the x-session-id of a document, a keyed hash that does not reveal the document's name."""
        name = str(body.get("document", "")).encode("utf-8", "replace")
        return hashlib.blake2b(name, key=self._secret, digest_size=16).hexdigest()

    def _parts(self) -> tuple[DaemonClient, Starter]:
        """Return the client and the starter for the current settings. Raises DaemonError."""
        if self._found is None:
            self._found = self._daemons.find(self._settings)
        return self._found


class Newest:
    """Delayed work for one document at a time, because a user may click through many documents."""

    def __init__(self, work: Callable[[Document], Coroutine[Any, Any, None]], daemon: Daemon) -> None:
        self._work, self._spawn = work, daemon.spawn
        self._uri = ""
        self._task: asyncio.Task[None] | None = None

    def plan(self, document: Document, delay: float) -> None:
        """Cancel any planned or running work, and schedule the work for a document in `delay` seconds."""
        self.stop()
        self._uri, self._task = document.uri, self._spawn(self._begin(document, delay))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def close(self, uri: str) -> None:
        if uri == self._uri:
            self.stop()

    async def _begin(self, document: Document, delay: float) -> None:
        await asyncio.sleep(delay)
        await self._work(document)


class WarmUps(Newest):
    """The planned or running warm-up of one client. `read` prefills the prompt at the likely cursor position."""

    def __init__(self, read: Callable[[Document], Coroutine[Any, Any, None]], daemon: Daemon) -> None:
        super().__init__(self._warm_up, daemon)
        self._read = read
        self._asked: tuple[int, int] | None = None  # state at the last request, which prefills the prompt itself

    def visited(self, document: Document) -> None:
        """Schedule a warm-up for the position to which the user has moved."""
        if document.state not in (document.warmed_up, self._asked):
            self.plan(document, VISIT_DELAY_S)
        elif document.uri != self._uri:
            self.stop()

    def changed(self, document: Document) -> None:
        """Postpone the warm-up after a change."""
        self.plan(document, IDLE_DELAY_S)

    def requested(self, document: Document) -> None:
        """Postpone the warm-up after a request."""
        self._asked = document.state
        self.plan(document, IDLE_DELAY_S)

    async def _warm_up(self, document: Document) -> None:
        if document.warmed_up == document.state or not document.buffer.text.strip():
            return
        document.warmed_up = document.state
        try:
            await self._read(document)
        except asyncio.CancelledError:
            document.warmed_up = None
            raise


class LookupFiles:
    """Sends lookup files, from which drafts are copied, to the daemon for each visited document that `is_completed`."""

    def __init__(
        self, context: RequestContext, daemon: Daemon, is_completed: Callable[[Document], Awaitable[bool]]
    ) -> None:
        self._context, self._daemon, self._is_completed = context, daemon, is_completed
        self._newest = Newest(self._send, daemon)
        self._sent: set[str] = set()  # URIs of documents whose files the daemon has
        # A separate thread, so that a folder that does not answer doesn't block the exclusion decisions.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="codespec-lookups")

    def plan(self, document: Document) -> None:
        """Schedule the sending of a visited document's lookup files after FILES_DELAY_S."""
        self._newest.plan(document, FILES_DELAY_S)

    def close(self, document: Document) -> None:
        """Tell the daemon to forget the files of a closed document."""
        self._newest.close(document.uri)
        if document.uri in self._sent:
            self._sent.remove(document.uri)
            self._daemon.spawn(self._try({"document": self._context.document_name(document), "files": []}, tries=1))

    def end(self) -> None:
        """Shut down the thread that reads files, after all documents have been closed."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _send(self, document: Document) -> None:
        if not await self._is_completed(document) or not self._context.sends_others:
            return
        opened, rules = self._context.open_files(document), self._context.exclusions.rules
        uri, rows, known = document.file, import_rows(document.buffer.lines), {document.path, *dict(opened)}

        def read() -> list[FileBody]:
            closed = (file for file in find_files(uri, rows, rules, MAX_BESIDE) if file.path not in known)
            return self._bodies(chain(opened, ((file.path, read_text(file.target)) for file in closed)))

        files = await asyncio.get_running_loop().run_in_executor(self._thread, read)
        if files or document.uri in self._sent:
            self._sent.add(document.uri)
            await self._try({"document": self._context.document_name(document), "files": files}, TRIES)

    async def _try(self, body: LookupBody, tries: int) -> None:
        """Send files to a daemon that may still be starting. Failures are ignored, because the files are optional."""
        for _ in range(tries):
            try:
                await self._daemon.send_files(body)
                return
            except Absent:
                await asyncio.sleep(FILES_RETRY_S)
            except DaemonError as error:
                if error.retry_after is None:
                    return
                await asyncio.sleep(max(FILES_RETRY_S, error.retry_after))

    def _bodies(self, files: Iterable[tuple[str, str]]) -> list[FileBody]:
        """Return request bodies for files of up to MAX_TOGETHER characters in all, without lines that hold secrets."""
        bodies, left = list[FileBody](), MAX_TOGETHER
        for path, text in files:
            if text.strip() and len(text) <= min(left, MAX_SIDE):
                left -= len(text)
                bodies.append({"path": self._context.shown(path), "text": clean(without_secrets(text))})
        return bodies
