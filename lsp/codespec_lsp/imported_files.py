"""What the files define that a document imports and that are not open: read from disk, in a thread, now and then.

Only regular files of the document's own repository, only heads of definitions, and only what the rules about secrets,
globs and ignore files let out, as they are each time. Knows no prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import tree_sitter
from codespec_grammars import find_language
from codespec_grammars.registry import Grammar, load_grammar

from codespec.regular_file import read_regular
from codespec_lsp.documents import Document
from codespec_lsp.exclusions import Exclusions
from codespec_lsp.imports import find_imported, import_rows
from codespec_lsp.outlines import outline

LOOK_AGAIN = 5.0  # seconds after which it is looked again, where somebody asks
MOST_BYTES = 64 << 10  # of a file: a larger one would hold up the loop while it is parsed
MOST_CHARACTERS = 4096  # for one document: reading them must not take the time of the answer
MOST_KEPT = 256  # outlines

Stamp = tuple[int, int]  # a file's time and size


class Definitions(NamedTuple):
    """The heads of what a file defines."""

    path: str
    uri: str
    text: str


class ImportedFiles:
    """What the documents of one client import."""

    def __init__(self, exclusions: Exclusions, clock: Callable[[], float]) -> None:
        self._exclusions = exclusions
        self._clock = clock
        self._found: dict[str, tuple[Definitions, ...]] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._looked: dict[str, float] = {}
        self._outlines: dict[Path, tuple[Stamp, str]] = {}
        # One of its own: a folder that does not answer holds up nothing else, and looking goes on when it does.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="codespec-imports")

    def known(self, document: Document) -> tuple[Definitions, ...]:
        """What was found last, as far as it may be sent now."""
        return tuple(each for each in self.found(document) if self._exclusions.known(each.uri) == "")

    def found(self, document: Document) -> tuple[Definitions, ...]:
        """What was found last."""
        return self._found.get(document.uri, ())

    def look(self, document: Document) -> asyncio.Task[None] | None:
        """Looks for a document's imports, unless that was done a moment ago; returns what is under way."""
        uri, now = document.uri, self._clock()
        if uri not in self._looking and now - self._looked.get(uri, -LOOK_AGAIN) >= LOOK_AGAIN:
            self._looked[uri] = now
            task = self._looking[uri] = asyncio.get_running_loop().create_task(self._look(document))
            task.add_done_callback(lambda _: self._looking.pop(uri, None))
        return self._looking.get(uri)

    def close(self, uri: str) -> list[str]:
        """A document is gone; returns the URIs of what it imported."""
        task = self._looking.pop(uri, None)
        if task is not None:
            task.cancel()
        self._looked.pop(uri, None)
        return [each.uri for each in self._found.pop(uri, ())]

    def end(self) -> None:
        """The client is gone."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _look(self, document: Document) -> None:
        rows = import_rows(document.buffer.lines)
        repository = await self._exclusions.repository(document.uri) if rows else None
        if repository is None:
            self._found.pop(document.uri, None)
            return
        loop = asyncio.get_running_loop()
        files = await loop.run_in_executor(self._thread, _find, rows, Path(document.path), repository)
        uris = {path.as_uri(): path for path in files}
        await self._exclusions.refresh(uris)
        allowed = [(uri, path) for uri, path in uris.items() if self._exclusions.known(uri) == ""]
        self._found[document.uri] = await loop.run_in_executor(self._thread, self._read, allowed)

    def _read(self, files: Iterable[tuple[str, Path]]) -> tuple[Definitions, ...]:
        """On the thread: the outlines of the files, as many as there is room for."""
        found, left = list[Definitions](), MOST_CHARACTERS
        for uri, path in files:
            text = self._outline(path)
            if text and len(text) <= left:
                left -= len(text)
                found.append(Definitions(str(path), uri, text))
        return tuple(found)

    def _outline(self, path: Path) -> str:
        """The heads of what a file defines; "" for one that can't be read, or of no language that is known."""
        try:
            state = path.stat()
            stamp = (state.st_mtime_ns, state.st_size)
            known = self._outlines.get(path)
            if known is None or known[0] != stamp:
                known = (stamp, _outline(path))
                while len(self._outlines) >= MOST_KEPT:
                    self._outlines.pop(next(iter(self._outlines)), None)
                self._outlines[path] = known
        except (OSError, ValueError):
            return ""
        return known[1]


def _find(rows: Sequence[str], file: Path, repository: Path) -> list[Path]:
    """The files that are meant, none of them a link that leads out of the repository."""
    top = repository.resolve()
    return [path for path in find_imported(rows, file, repository) if path.resolve().is_relative_to(top)]


def _outline(path: Path) -> str:
    language = find_language(path=str(path))
    grammar = load_grammar(language) if language else None
    if not isinstance(grammar, Grammar):
        return ""
    source = read_regular(path, MOST_BYTES)
    text = outline(tree_sitter.Parser(grammar.language).parse(source).root_node, source)
    return "" if "\0" in text else text
