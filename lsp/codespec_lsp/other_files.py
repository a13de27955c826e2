"""Files on disk that a document's completions use, read outside the event loop and at intervals.

Of imported files, the heads of their definitions go into the prompt. To copy drafts from, the daemon gets whole files:
the other open ones, the imported ones and those in the same folder, for the document visited last. Only regular files
of the document's repository are read. The rules about secrets, globs and ignore files must allow both the spelled path
and its resolved target.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from codespec_grammars import find_language
from codespec_grammars.workers import Worker, WorkerDied

from codespec.contract.body import FileBody, LookupBody
from codespec.contract.limits import MOST_PATH, MOST_SIDE
from codespec.contract.types import Snippet
from codespec.errors import Absent, DaemonError
from codespec.ignore_files import repository_of
from codespec.regular_file import NotUtf8, decode_text, read_regular
from codespec_lsp.documents import Document
from codespec_lsp.exclusions import PATIENCE, Exclusions, Rules
from codespec_lsp.imports import find_imported, import_rows
from codespec_lsp.prompt import clean
from codespec_lsp.uris import path_of, split_uri
from codespec_lsp.visits import Newest

LOOK_AGAIN = 1.0  # seconds after which a request looks again; exclusion decisions have the same maximum age
SERVICE = "codespec_lsp.outlines:OutlineService"
READING = 5.0  # seconds for one file's outline, which is empty if it takes longer
MOST_FILES = 6
MOST_CHARACTERS = 4096  # for one document, to limit the time for prefilling them
MOST_KEPT = 256  # outlines
DELAY = 0.3  # seconds before files are sent, so that passing through many documents sends only the last one's files
WAIT = 2.0  # seconds before another try if no daemon answers
TRIES = 60
MOST_TOGETHER = 256 * 1024  # characters of all files sent
MOST_NAMES = 4096  # searched names in a folder
NOTEBOOK = ".ipynb"
MOST_BESIDE = 16  # files of the same folder, the most recently changed ones

Send = Callable[[LookupBody], Awaitable[None]]
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class File(NamedTuple):
    """An imported file: its path, the resolved path, and the modification time and size of that."""

    path: str
    meant: str
    time: int
    size: int


@dataclass(slots=True)
class _Imports:
    """The imports of a document under some rules. `files` is set when the search that started at `began` ends."""

    rules: Rules
    began: float
    looking: asyncio.Task[None]
    files: tuple[File, ...] = ()


class ImportedFiles:
    """The imported files of one client's documents."""

    def __init__(self, exclusions: Exclusions, clock: Callable[[], float]) -> None:
        self._exclusions = exclusions
        self._clock = clock
        self._imports: dict[str, _Imports] = {}
        self._outlines: dict[File, str] = {}
        self._reading: asyncio.Task[None] | None = None
        # A separate thread: a folder that does not answer blocks nothing else, and the search continues when it does.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="codespec-imports")

    def known(self, document: Document) -> tuple[Snippet, ...]:
        """Return the heads of definitions that the last search found, within the limit; () during a search."""
        imports = self._imports.get(document.uri)
        if imports is None or imports.rules is not self._exclusions.rules or not imports.looking.done():
            return ()
        found, left = list[Snippet](), MOST_CHARACTERS
        for file in imports.files:
            text = self._outlines.get(file, "")
            if text and len(text) <= left:
                left -= len(text)
                found.append(Snippet(file.path, text))
        return tuple(found)

    async def look(self, document: Document) -> None:
        """Find the files that a document imports, unless that was done recently. Waits at most PATIENCE.

        The files are read afterwards.
        """
        imports, now = self._imports.get(document.uri), self._clock()
        old = imports is not None and (now - imports.began >= LOOK_AGAIN and imports.looking.done())
        if imports is None or old or imports.rules is not self._exclusions.rules:
            if imports is not None:
                imports.looking.cancel()
            task = asyncio.get_running_loop().create_task(self._look(document))
            imports = self._imports[document.uri] = _Imports(self._exclusions.rules, now, task)
        left = imports.began + PATIENCE - now
        if left > 0 and not imports.looking.done():
            await asyncio.wait([imports.looking], timeout=left)

    async def read(self, seconds: float) -> None:
        """Wait at most `seconds` until the found files have been read."""
        if self._reading is not None and not self._reading.done():
            await asyncio.wait([self._reading], timeout=seconds)

    def close(self, uri: str) -> None:
        """Drop the imports of a closed document."""
        imports = self._imports.pop(uri, None)
        if imports is not None:
            imports.looking.cancel()

    async def end(self) -> None:
        """Stop all work, after all documents are closed."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _look(self, document: Document) -> None:
        """Find the imported files, and start reading those without an outline."""
        await asyncio.sleep(0)  # let the caller store this search first
        imports = self._imports[document.uri]
        rows = import_rows(document.buffer.lines)
        if rows:
            loop, uri = asyncio.get_running_loop(), document.file
            imports.files = await loop.run_in_executor(self._thread, _find, rows, uri, imports.rules)
        unread = [file for file in imports.files if file not in self._outlines]
        if unread and (self._reading is None or self._reading.done()):
            self._reading = asyncio.get_running_loop().create_task(self._read(unread))

    async def _read(self, files: Sequence[File]) -> None:
        """Read each file in a process. A file that breaks the process or takes too long has an empty outline."""
        for file in files:
            while len(self._outlines) >= MOST_KEPT:
                del self._outlines[next(iter(self._outlines))]
            self._outlines[file] = ""
            language = find_language(path=file.meant)
            if not language:
                continue
            with contextlib.suppress(WorkerDied):
                worker = Worker(SERVICE, language)
                try:
                    self._outlines[file] = await worker.ask_beside(file.meant, READING)
                finally:
                    worker.close()


def _find(rows: Sequence[str], uri: str, rules: Rules) -> tuple[File, ...]:
    """Find the imported files of the document's repository that may be sent. Runs in the thread."""
    found = list[File]()
    try:
        file, repository = _file_and_repository(uri, rules)
        for path, meant in sendable(find_imported(rows, file, repository), repository, rules) if repository else ():
            state = meant.stat()
            found.append(File(str(path), str(meant), state.st_mtime_ns, state.st_size))
    except (OSError, ValueError, RuntimeError):  # a missing file, an invalid name, or a cycle of links
        return ()
    return tuple(found[:MOST_FILES])


def _file_and_repository(uri: str, rules: Rules) -> tuple[Path, Path | None]:
    """Return the path of a document's file, and its repository if it is a saved file in one. Raises OSError."""
    file = Path(path_of(uri))
    is_file = split_uri(uri).scheme == "file" and file.is_absolute()
    return file, repository_of(file, rules.roots) if is_file else None


def sendable(paths: Iterable[Path], repository: Path, rules: Rules) -> Iterator[tuple[Path, Path]]:
    """Yield the paths that may be sent, each with its resolved target.

    The target must be in the repository, not in one nested in it, and the rules must allow both paths. Blocks on the
    file system. Raises OSError, ValueError or RuntimeError.
    """
    top, roots = repository.resolve(), [root.resolve() for root in rules.roots]
    for path in paths:
        meant = path.resolve()
        if repository_of(meant, roots) == top and rules.lets_out(path) and rules.lets_out(meant):
            yield path, meant


@dataclass(frozen=True, slots=True)
class Wanted:
    """The data for one document: its name at the daemon, the open files, and the rules for other files."""

    name: str
    open: tuple[tuple[str, str], ...]  # path and text
    rules: Rules


class LookupFiles:
    """The lookup files of one client. `find` returns the data for a document, or None; `send` sends a request body."""

    def __init__(self, find: Callable[[Document], Awaitable[Wanted | None]], send: Send, spawn: Spawn) -> None:
        self._find, self._send, self._spawn = find, send, spawn
        self._newest = Newest(lambda document: spawn(self._gather(document)))
        self._sent: dict[str, str] = {}  # names at the daemon by URI
        # A separate thread, so that a folder that does not answer doesn't block the exclusion decisions.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="codespec-lookups")

    def plan(self, document: Document) -> None:
        """Plan to send the files for a visited document after DELAY, with their content at that time."""
        self._newest.plan(document, DELAY)

    def close(self, uri: str) -> None:
        """Tell the daemon to forget the files of a closed document."""
        self._newest.close(uri)
        name = self._sent.pop(uri, "")
        if name:
            self._spawn(self._try({"document": name, "files": []}, tries=1))

    def end(self) -> None:
        """Release the thread, after all documents are closed."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _gather(self, document: Document) -> None:
        wanted = await self._find(document)
        if wanted is None:
            return
        rows, opened = import_rows(document.buffer.lines), {document.path, *(path for path, _ in wanted.open)}
        loop, uri = asyncio.get_running_loop(), document.file
        found = await loop.run_in_executor(self._thread, find_files, uri, rows, wanted.rules, opened)
        files: list[FileBody] = [{"path": path, "text": text} for path, text in _within((*wanted.open, *found))]
        if files or document.uri in self._sent:
            self._sent[document.uri] = wanted.name
            await self._try({"document": wanted.name, "files": files}, TRIES)

    async def _try(self, body: LookupBody, tries: int) -> None:
        """Send a body to a daemon that may still be starting. Failures are silent, because the files are optional."""
        for _ in range(tries):
            try:
                await self._send(body)
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
    found = list[tuple[str, str]]()
    try:
        file, repository = _file_and_repository(uri, rules)
        if repository is None:
            return []
        beside = _beside(file) if file.suffix != NOTEBOOK else []  # notebook files are JSON
        paths = dict.fromkeys((*find_imported(rows, file, repository), *beside))
        unknown = [path for path in paths if str(path) not in known]
        for path, meant in sendable(unknown, repository, rules):
            text = _read(meant)
            found += [(str(path), text)] if text else []
    except (OSError, ValueError, RuntimeError):  # a missing folder, an invalid name, or a cycle of links
        return found
    return found


def _beside(file: Path) -> list[Path]:
    """Return the files with the same folder and suffix, the most recently changed first."""
    names = islice(file.parent.iterdir(), MOST_NAMES)
    others = [path for path in names if path.suffix == file.suffix and path != file and path.is_file()]
    return sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST_BESIDE]


def _read(path: Path) -> str:
    """Return the text of a file, or "" if it is not UTF-8 text, too long or unreadable."""
    try:
        return decode_text(read_regular(path, MOST_SIDE))
    except (OSError, NotUtf8):
        return ""


def _within(files: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the first files that fit into MOST_TOGETHER, with cleaned paths and texts."""
    kept, left = list[tuple[str, str]](), MOST_TOGETHER
    for path, text in files:
        if text.strip() and len(text) <= min(left, MOST_SIDE):
            left -= len(text)
            kept.append((clean(path)[-MOST_PATH:], clean(text)))
    return kept
