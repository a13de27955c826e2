"""Files that the daemon copies drafts from: other open files, imported ones and those in the same folder, in whole.

They are read from disk and sent for the document that was visited last, outside the event loop. Only regular files of
the document's repository are read. The rules about secrets, globs and ignore files must allow both the spelled path and
its resolved target.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from codespec.api.body import FileBody, LookupBody
from codespec.api.limits import MAX_PATH, MAX_SIDE
from codespec.errors import Absent, DaemonError
from codespec.exclusions.secret_text import without_secrets
from codespec.files import NotUtf8, decode_text, read_regular
from codespec_lsp.documents import Document, Newest
from codespec_lsp.exclusions import Rules
from codespec_lsp.imports import find_imported, import_rows
from codespec_lsp.prompt import clean

DELAY = 0.3  # seconds before files are sent: passing through many documents sends only the last one's files
WAIT = 2.0  # seconds before another try if no daemon answers
TRIES = 60
MAX_TOGETHER = 256 * 1024  # characters of all files sent
MAX_NAMES = 4096  # searched names in a folder
NOTEBOOK = ".ipynb"
MAX_BESIDE = 16  # files of the same folder, the most recently changed ones

Send = Callable[[LookupBody], Awaitable[None]]
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


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
        others = await loop.run_in_executor(self._thread, find_files, uri, rows, wanted.rules, opened)
        within = await loop.run_in_executor(self._thread, _within, (*wanted.open, *others), wanted.rules)
        files: list[FileBody] = [{"path": path, "text": text} for path, text in within]
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
