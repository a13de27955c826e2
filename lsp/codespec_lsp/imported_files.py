"""What the files define that a document imports and that are not open: found and read beside the loop, now and then.

Only regular files of the document's own repository, only heads of definitions, and only what the rules about secrets,
globs and ignore files let out, by the name that is spelled and by the one that it leads to. Knows no prompt.
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

from codespec.ignore_files import repository_of
from codespec_lsp.documents import Document
from codespec_lsp.exclusions import PATIENCE, Exclusions, Rules
from codespec_lsp.imports import find_imported, import_rows
from codespec_lsp.uris import path_of, split_uri

LOOK_AGAIN = 1.0  # seconds after which it is looked again, where somebody asks: decisions on open files get as old
SERVICE = "codespec_lsp.outline_reader"
READING = 5.0  # seconds for one file's outline; where it takes longer there is none
MOST_FILES = 6
MOST_CHARACTERS = 4096  # for one document: reading them must not take the time of the answer
MOST_KEPT = 256  # outlines


class Definitions(NamedTuple):
    """The heads of what a file defines."""

    path: str
    text: str


class File(NamedTuple):
    """A file as it is imported, what that name leads to, and the state of it."""

    path: str
    meant: str
    time: int
    size: int


@dataclass(slots=True)
class _Imports:
    """What a document imports by some rules, as far as the look that `began` then is over."""

    rules: Rules
    began: float
    looking: asyncio.Task[None]
    files: tuple[File, ...] = ()


class ImportedFiles:
    """What the documents of one client import."""

    def __init__(self, exclusions: Exclusions, clock: Callable[[], float]) -> None:
        self._exclusions = exclusions
        self._clock = clock
        self._imports: dict[str, _Imports] = {}
        self._outlines: dict[File, str] = {}
        self._reading: asyncio.Task[None] | None = None
        # One of its own: a folder that does not answer holds up nothing else, and looking goes on when it does.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="codespec-imports")

    def known(self, document: Document) -> tuple[Definitions, ...]:
        """What the last look found, as far as it is read and there is room for it; nothing while one is under way."""
        imports = self._imports.get(document.uri)
        if imports is None or imports.rules is not self._exclusions.rules or not imports.looking.done():
            return ()
        found, left = list[Definitions](), MOST_CHARACTERS
        for file in imports.files:
            text = self._outlines.get(file, "")
            if text and len(text) <= left:
                left -= len(text)
                found.append(Definitions(file.path, text))
        return tuple(found)

    async def look(self, document: Document) -> None:
        """Looks which files a document imports, unless that was done a moment ago, and waits for it, but not for long.
        They are read afterwards."""
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
        """Waits until the files that were found are read."""
        if self._reading is not None and not self._reading.done():
            await asyncio.wait([self._reading], timeout=seconds)

    def close(self, uri: str) -> None:
        """A document is gone."""
        imports = self._imports.pop(uri, None)
        if imports is not None:
            imports.looking.cancel()

    async def end(self) -> None:
        """The client is gone, after its documents."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _look(self, document: Document) -> None:
        """Finds the files of the newest look, and has those read that are not known."""
        await asyncio.sleep(0)  # until whoever began it has kept it
        imports = self._imports[document.uri]
        rows = import_rows(document.buffer.lines)
        if rows:
            loop, uri = asyncio.get_running_loop(), document.file
            imports.files = await loop.run_in_executor(self._thread, _find, rows, uri, imports.rules)
        unread = [file for file in imports.files if file not in self._outlines]
        if unread and (self._reading is None or self._reading.done()):
            self._reading = asyncio.get_running_loop().create_task(self._read(unread))

    async def _read(self, files: Sequence[File]) -> None:
        """Has each file read in a process. One that breaks it, or takes too long, counts as empty."""
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
    """On the thread: the files that are meant, that lie in the document's own repository, and that may be sent."""
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
    except (OSError, ValueError, RuntimeError):  # it is gone, its name is none, or its links lead round and round
        return ()
    return tuple(found[:MOST_FILES])


def sendable(paths: Iterable[Path], repository: Path, rules: Rules) -> Iterator[tuple[Path, Path]]:
    """Those of the paths, each with what it leads to, that lie in a repository and in none within it, and that the
    rules let out by both names. Waits for the file system; raises OSError, ValueError or RuntimeError as that does.
    """
    top, roots = repository.resolve(), [root.resolve() for root in rules.roots]
    for path in paths:
        meant = path.resolve()
        if repository_of(meant, roots) == top and rules.lets_out(path) and rules.lets_out(meant):
            yield path, meant
