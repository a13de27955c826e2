"""What the daemon gets ahead of requests: the prompt at the resting cursor, and files to copy drafts from.

Each is for one document at a time. A prompt is read once for each text and place. The files are other open files,
imported ones and those in the same folder, in whole, read from disk outside the event loop: only regular files of the
document's repository. The rules about secrets, globs and ignore files must allow both the spelled path and its resolved
target.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from codespec.api.body import FileBody, LookupBody
from codespec.api.limits import MAX_PATH, MAX_SIDE
from codespec.errors import Absent, DaemonError
from codespec.exclusions.secrets import without_secrets
from codespec.files import NotUtf8, decode_text, read_regular
from codespec_lsp.daemon import Daemon
from codespec_lsp.documents import Document
from codespec_lsp.exclusions import Rules
from codespec_lsp.imports import find_imported, import_rows
from codespec_lsp.prompt import RequestContext, clean

AT_ONCE = 0.1  # seconds from a visit to a warm-up: skips documents and places that the user only passes
IDLE = 1.0  # seconds from the last change or request to a warm-up
DELAY = 0.3  # seconds before files are sent: passing through many documents sends only the last one's files
WAIT = 2.0  # seconds before another try if no daemon answers
TRIES = 60
MAX_TOGETHER = 256 * 1024  # characters of all files sent
MAX_NAMES = 4096  # searched names in a folder
NOTEBOOK = ".ipynb"
MAX_BESIDE = 16  # files of the same folder, the most recently changed ones

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Newest:
    """Delayed work for one document at a time: a user who clicks through many documents needs it for the last only."""

    def __init__(self, work: Callable[[Document], Coroutine[Any, Any, None]], spawn: Spawn) -> None:
        self._work, self._spawn = work, spawn
        self._uri = ""
        self._task: asyncio.Task[None] | None = None

    def plan(self, document: Document, delay: float) -> None:
        """Plan the work for a document in `delay` seconds, after cancelling anything planned or running."""
        self.stop()
        self._uri, self._task = document.uri, self._spawn(self._begin(document, delay))

    def stop(self) -> None:
        """Cancel the planned or running work."""
        if self._task is not None:
            self._task.cancel()

    def close(self, uri: str) -> None:
        """Cancel the work for a closed document, if it is the current one."""
        if uri == self._uri:
            self.stop()

    async def _begin(self, document: Document, delay: float) -> None:
        await asyncio.sleep(delay)
        await self._work(document)


class WarmUps(Newest):
    """The planned or running warm-up of one client.

    `read` sends the prompt at the document's likely position to the daemon; `spawn` runs it as a task.
    """

    def __init__(self, read: Callable[[Document], Coroutine[Any, Any, None]], spawn: Spawn) -> None:
        super().__init__(self._warm_up, spawn)
        self._read = read
        self._asked: tuple[int, int] | None = None  # the state of the last request, which reads its prompt itself

    def visited(self, document: Document) -> None:
        """Plan a warm-up of the place that the user has moved to, instead of any other."""
        if _state(document) not in (document.warmed_up, self._asked):
            self.plan(document, AT_ONCE)
        elif document.uri != self._uri:
            self.stop()

    def changed(self, document: Document) -> None:
        """Cancel the warm-up because of a change, and plan one for when the document is left alone."""
        self.plan(document, IDLE)

    def requested(self, document: Document) -> None:
        """Cancel the warm-up because of a request, and plan one that renews the prompt in idle time."""
        self._asked = _state(document)
        self.plan(document, IDLE)

    async def _warm_up(self, document: Document) -> None:
        if document.warmed_up == _state(document) or not document.buffer.text.strip():
            return
        document.warmed_up = _state(document)
        try:
            await self._read(document)
        except asyncio.CancelledError:
            document.warmed_up = None
            raise


def _state(document: Document) -> tuple[int, int]:
    return document.revision, document.rests


class LookupFiles:
    """The lookup files of one client, sent for documents that `is_completed` lets pass."""

    def __init__(
        self, context: RequestContext, daemon: Daemon, is_completed: Callable[[Document], Awaitable[bool]]
    ) -> None:
        self._context, self._daemon, self._is_completed = context, daemon, is_completed
        self._newest = Newest(self._gather, daemon.spawn)
        self._sent: set[str] = set()  # URIs of documents whose files the daemon has
        # A separate thread, so that a folder that does not answer doesn't block the exclusion decisions.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="codespec-lookups")

    def plan(self, document: Document) -> None:
        """Plan to send the files for a visited document after DELAY, with their content at that time."""
        self._newest.plan(document, DELAY)

    def close(self, document: Document) -> None:
        """Tell the daemon to forget the files of a closed document."""
        self._newest.close(document.uri)
        if document.uri in self._sent:
            self._sent.remove(document.uri)
            self._daemon.spawn(self._try({"document": self._context.document_name(document), "files": []}, tries=1))

    def end(self) -> None:
        """Release the thread, after all documents are closed."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _gather(self, document: Document) -> None:
        if not await self._is_completed(document) or not self._context.sends_others:
            return
        opened, rules = self._context.open_files(document), self._context.exclusions.rules
        rows, known = import_rows(document.buffer.lines), {document.path, *(path for path, _ in opened)}
        loop, uri = asyncio.get_running_loop(), document.file
        others = await loop.run_in_executor(self._thread, find_files, uri, rows, rules, known)
        within = await loop.run_in_executor(self._thread, _within, (*opened, *others), rules)
        files: list[FileBody] = [{"path": path, "text": text} for path, text in within]
        if files or document.uri in self._sent:
            self._sent.add(document.uri)
            await self._try({"document": self._context.document_name(document), "files": files}, TRIES)

    async def _try(self, body: LookupBody, tries: int) -> None:
        """Send a body to a daemon that may still be starting. Failures are silent, because the files are optional."""
        for _ in range(tries):
            try:
                await self._daemon.send_files(body)
                return
            except Absent:
                await asyncio.sleep(WAIT)
            except DaemonError as error:
                if error.again is None:
                    return
                await asyncio.sleep(max(WAIT, error.again))


def find_files(uri: str, rows: Sequence[str], rules: Rules, known: Collection[str]) -> list[tuple[str, str]]:
    """Return the path and text of files that a document imports or that are in its folder.

    Only files of the document's repository are returned that the rules allow, without the `known` paths. Blocks on the
    file system.
    """
    files = list[tuple[str, str]]()
    try:
        file, repository = rules.repository_of(uri)
        if repository is None:
            return []
        beside = _beside(file) if file.suffix != NOTEBOOK else []  # notebook files are JSON
        paths = dict.fromkeys((*find_imported(rows, file, repository), *beside))
        unknown = [path for path in paths if str(path) not in known]
        for path, target in rules.sendable(unknown, repository):
            text = _read(target)
            files += [(str(path), text)] if text else []
    except (OSError, ValueError, RuntimeError):  # a missing folder, an invalid name, or a cycle of links
        return files
    return files


def _beside(file: Path) -> list[Path]:
    """Return the files with the same folder and suffix, the most recently changed first."""
    names = islice(file.parent.iterdir(), MAX_NAMES)
    others = [path for path in names if path.suffix == file.suffix and path != file and path.is_file()]
    return sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[:MAX_BESIDE]


def _read(path: Path) -> str:
    """Return the text of a file, or "" if it is not UTF-8 text, too long or unreadable."""
    try:
        return decode_text(read_regular(path, MAX_SIDE))
    except (OSError, NotUtf8):
        return ""


def _within(files: Iterable[tuple[str, str]], rules: Rules) -> list[tuple[str, str]]:
    """Return the first files that fit into MAX_TOGETHER, with cleaned and shown paths, and without secret lines."""
    kept, left = list[tuple[str, str]](), MAX_TOGETHER
    for path, text in files:
        if text.strip() and len(text) <= min(left, MAX_SIDE):
            left -= len(text)
            kept.append((clean(rules.shown(path))[-MAX_PATH:], clean(without_secrets(text))))
    return kept
