"""Find and outline the files that a document imports, outside the event loop and at intervals.

Only regular files of the document's repository are read, and only the heads of their definitions are used. The rules
about secrets, globs and ignore files must allow both the spelled path and its resolved target.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from codespec_grammars import find_language
from codespec_grammars.workers import Worker, WorkerDied

from codespec.contract.types import Snippet
from codespec.ignore_files import repository_of
from codespec_lsp.documents import Document
from codespec_lsp.exclusions import PATIENCE, Exclusions, Rules
from codespec_lsp.imports import find_imported, import_rows
from codespec_lsp.uris import path_of, split_uri

LOOK_AGAIN = 1.0  # seconds after which a request looks again; exclusion decisions have the same maximum age
SERVICE = "codespec_lsp.outlines:OutlineService"
READING = 5.0  # seconds for one file's outline, which is empty if it takes longer
MOST_FILES = 6
MOST_CHARACTERS = 4096  # for one document, to limit the time for prefilling them
MOST_KEPT = 256  # outlines


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
    file = Path(path_of(uri))
    if split_uri(uri).scheme != "file" or not file.is_absolute():
        return ()
    try:
        repository = repository_of(file, rules.roots)
        if repository is None:
            return ()
        found = list[File]()
        for path, meant in sendable(find_imported(rows, file, repository), repository, rules):
            state = meant.stat()
            found.append(File(str(path), str(meant), state.st_mtime_ns, state.st_size))
    except (OSError, ValueError, RuntimeError):  # a missing file, an invalid name, or a cycle of links
        return ()
    return tuple(found[:MOST_FILES])


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
