"""Find the repository files that a document imports, and outline them for the prompt.

The search uses names only: the words of an import are looked up as a path below the file's folder and the folders above
it. The search opens no file except go.mod. Files that may be sent are then outlined in separate processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from codespec_grammars import find_language
from codespec_grammars.workers import Worker, WorkerDied

from codespec.api.limits import MAX_SIDE
from codespec.files import NotUtf8, decode_text, read_regular
from codespec_lsp.documents import Document, now
from codespec_lsp.exclusions import DECISION_TIMEOUT_S, Exclusions, Rules
from codespec_lsp.outline import Block, Outline

ROWS = 400  # rows of a document that are searched for imports
MAX_ROW = 200  # characters of an import's row
MAX_INSIDE = 40  # rows inside one bracket
MAX_FILES, MAX_EACH = 12, 3  # files in total, and for one import
MAX_WORDS = 12  # of an import
MAX_TRIED = 20_000  # names, which takes about ten milliseconds
MAX_FOLDERS, MAX_NAMES = 200, 5000  # listed folders, and names in each
MAX_BESIDE = 16  # files of the same folder, the most recently changed ones
_IMPORT = re.compile(
    r"\s*(?:(?:import|from|use|using|#\s*include|require|require_relative|include|package|extern crate|"
    r"export .* from)\b|(?:pub(?:\([\w: ]*\))? )?mod \w+;)"
)
_REQUIRE = re.compile(r".*\brequire\(")
_QUOTED = re.compile(r"""["'<]([\w@~$./+-]+)["'>]""")
_ALIASES = ("@", "~")  # for the repository's own sources
_MODULE = re.compile(r"\s*(?:pub(?:\([\w: ]*\))? )?mod (\w+);")
_WORDS = re.compile(r"\.*[\w$]+(?:(?:\.|::)[\w$]+)*|\.+(?=\s+import\b)")
_NAME = re.compile(r"[^\W\d]\w*")
_NO_WORDS = re.compile(r"\sas\s+\w+|#.*|//.*|;.*")
_KEYWORDS = frozenset(
    ("import", "from", "use", "using", "static", "type", "extern", "crate", "pub", "include", "require")
)
_HERE, _ABOVE, _TOP = "self", "super", "crate"  # in Rust's paths
_RUST_ROOTS = ("mod.rs", "lib.rs", "main.rs")  # their modules are in the same folder
_GO_MODULE = re.compile(rb"^module\s+(\S+)", re.MULTILINE)
_BESIDE = ("src", "lib", "include", "src/main/java", "src/main/kotlin")  # source folders of a project
_C = ("", ".h", ".hpp")
_SCRIPT = ("", ".ts", ".tsx", ".js", ".jsx", ".mjs", ".d.ts", "/index.ts", "/index.tsx", "/index.js")
_SCRIPTS = (
    *(".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs"),
    *(".vue", ".svelte", ".astro", ".html", ".htm"),  # their scripts import too
)
ENDINGS = {
    **dict.fromkeys((".py", ".ipynb"), (".py", "/__init__.py", ".pyi")),
    ".pyi": (".pyi", ".py", "/__init__.py"),
    **dict.fromkeys(_SCRIPTS, _SCRIPT),
    **dict.fromkeys((".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp"), _C),
    ".rs": (".rs", "/mod.rs"),
    ".java": (".java", ".kt"),
    ".kt": (".kt", ".java"),
    ".scala": (".scala", ".java"),
    ".rb": (".rb", ""),
    **dict.fromkeys((".php", ".phtml"), (".php", "")),
    ".lua": (".lua", "/init.lua"),
}
MAX_SEARCH_AGE_S = 1.0  # seconds after which a request searches again; exclusion decisions have the same maximum age
SERVICE = "codespec_lsp.outline:OutlineService"
OUTLINE_TIMEOUT_S = 5.0  # seconds for one file's outline
MAX_OUTLINED = 6  # files for one document
MAX_KEPT = 256  # outlines


class Import(NamedTuple):
    """The `words` of an imported path, which starts `above` levels up from the file's folder (None: in any folder)."""

    words: tuple[str, ...]
    above: int | None = None


def import_rows(lines: Sequence[str]) -> list[str]:
    """Return the import rows of a file, including the rows inside a bracket that an import row opens."""
    rows, inside = list[str](), 0
    for row in lines[:ROWS]:
        if len(row) >= MAX_ROW:
            inside = 0
        elif inside or _IMPORT.match(row) or _REQUIRE.match(row):
            rows.append(row)
            inside = _left_inside(row, inside)
    return rows


def imported_names(rows: Sequence[str]) -> frozenset[str]:
    """Return all words of import rows, which include the imported names."""
    return frozenset(word for row in rows for word in _NAME.findall(row))


def find_imported(rows: Sequence[str], file: Path, repository: Path) -> list[Path]:
    """Return up to MAX_FILES existing repository files to which the import rows may refer, in row order."""
    tree, tried = _Tree(), 0
    folders = [folder for folder in file.parents if folder.is_relative_to(repository)]
    if file.suffix == ".go":
        return _find_go(rows, folders, tree, file)
    if file.suffix == ".rs" and file.name not in _RUST_ROOTS:
        folders.insert(0, file.with_suffix(""))
    paths = dict[Path, None]()
    for named in (named for row in _joined(rows) for named in parse_import(row)):
        if _is_elsewhere(named, file.suffix):
            continue
        for start, name in _candidates(named, folders, ENDINGS.get(file.suffix, ())):
            tried += 1
            if tree.holds(start, name) and (path := start / name).is_file():
                if path != file:
                    paths[path] = None
                break
            if tried >= MAX_TRIED:
                return list(paths)
        if len(paths) >= MAX_FILES:
            break
    return list(paths)


def parse_import(row: str) -> list[Import]:
    """Return the imports that a row may contain, likeliest first. A `package` declaration contains no imports."""
    quoted = _QUOTED.findall(row)
    if quoted:
        return [_path_import(each) for each in quoted]
    module = _MODULE.match(row)
    if module:
        return [Import((module[1],), 0)]
    words = [each for each in _WORDS.findall(_NO_WORDS.sub("", row)) if each not in _KEYWORDS]
    if not words or words[0] == "package":
        return []
    base, *others = (_word_import(each) for each in words)
    members = [Import((*base.words, *other.words)[:MAX_WORDS], base.above) for other in others]
    return [*members, base, *(others if row.lstrip().startswith("import") else ())]


def _path_import(text: str) -> Import:
    """Parse a quoted path such as `./a/b`, `../c`, `geo/box.h` or `@/layout/box`."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    above = parts.count("..") if text.startswith(".") else None
    return Import(tuple(part for part in parts if part != "..")[:MAX_WORDS], above)


def _word_import(text: str) -> Import:
    """Parse a dotted name such as `..a.b`, `com.shop.Price`, `crate::shop::price` or `super::price`."""
    dots = len(text) - len(text.lstrip("."))
    words = [word for word in re.split(r"\.|::", text) if word]
    above = dots - 1 if dots else None
    while words and words[0] in (_HERE, _ABOVE, _TOP):
        if words[0] != _TOP:
            above = (above or 0) + (words[0] == _ABOVE)
        del words[0]
    return Import(tuple(words[:MAX_WORDS]), above)


def _is_elsewhere(named: Import, suffix: str) -> bool:
    """Return whether the import is from Python's standard library or names a JavaScript package."""
    if named.above is not None or not named.words:
        return False
    if suffix in (".py", ".pyi", ".ipynb"):
        return named.words[0] in sys.stdlib_module_names
    return suffix in _SCRIPTS and len(named.words) == 1


def _find_go(rows: Sequence[str], folders: Sequence[Path], tree: _Tree, file: Path) -> list[Path]:
    """Find the files of Go imports: a package is a folder of the module that go.mod declares."""
    top = next((folder for folder in folders if tree.holds(folder, "go.mod")), None)
    files = list[Path]()
    try:
        declared = _GO_MODULE.search(read_regular(top / "go.mod", 64 << 10)) if top else None
    except (OSError, ValueError):
        return []
    if declared is None or top is None:
        return []
    module = declared[1].decode("utf-8", "replace") + "/"
    for text in (text for row in _joined(rows) for text in _QUOTED.findall(row)):
        words = [word for word in text.removeprefix(module).split("/") if word not in ("", ".", "..")]
        if text.startswith(module) and words and tree.holds(top, "/".join(words)):
            folder = top.joinpath(*words)
            names = sorted(name for name in tree.names(str(folder)) if name.endswith(".go"))
            paths = [folder / name for name in names if not name.endswith("_test.go")][:MAX_EACH]
            files += [path for path in paths if path != file and path.is_file()]
    return files[:MAX_FILES]


def _candidates(named: Import, folders: Sequence[Path], endings: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield an import's possible paths as (folder, name) pairs, longer names first, then nearer folders."""
    if named.above is None:
        starts = [*folders, *(folder / name for folder in folders for name in _BESIDE)]
    else:
        starts = list(folders[named.above : named.above + 1])
    for words in _spellings(named):
        yield from ((start, "/".join(words) + ending) for start in starts for ending in endings)


def _spellings(named: Import) -> Iterator[tuple[str, ...]]:
    """Yield possible paths. An import's last words may be names in a file, and its first word may be an alias."""
    words = named.words
    if words and named.above is None and words[0] in _ALIASES:
        words = words[1:]
    yield from (words[:end] for end in range(len(words), 0, -1))
    if words and words[-1].endswith(".js"):  # TypeScript imports a .ts file by its compiled name
        yield (*words[:-1], words[-1].removesuffix(".js"))
    if len(words) == 1 and "." in words[0]:  # Lua's quoted module names
        yield tuple(word for word in words[0].split(".") if word)


class _Tree:
    """A cache of the exact file names in folders, in which each folder is listed once."""

    def __init__(self) -> None:
        self._listed: dict[str, frozenset[str]] = {}

    def holds(self, start: Path, name: str) -> bool:
        """Return whether the path `name` exists below a folder."""
        folder = str(start)
        *folders, last = name.split("/")
        for each in folders:
            if each not in self.names(folder):
                return False
            folder = f"{folder}/{each}"
        return last in self.names(folder)

    def names(self, folder: str) -> frozenset[str]:
        """Return up to MAX_NAMES names in a folder, or none once MAX_FOLDERS folders have been listed."""
        known = self._listed.get(folder)
        if known is None and len(self._listed) < MAX_FOLDERS:
            known = self._listed[folder] = _list(folder)
        return known or frozenset()


def _list(folder: str) -> frozenset[str]:
    with contextlib.suppress(OSError, ValueError), os.scandir(folder) as entries:  # a missing or unreadable folder
        return frozenset(entry.name for entry in islice(entries, MAX_NAMES))
    return frozenset()


def _joined(rows: Sequence[str]) -> list[str]:
    """Return the rows, with the rows inside a bracket joined to the row that opens the bracket."""
    joined, inside = list[str](), 0
    for row in rows:
        if inside:
            joined[-1] += row
        else:
            joined.append(row)
        inside = _left_inside(row, inside)
    return joined


def _left_inside(row: str, inside: int) -> int:
    """Return how many rows after `row` may still be inside a bracket; `inside` is that number before `row`."""
    opens, closes = row.rstrip().endswith(("(", "{")), row.lstrip().startswith((")", "}"))
    if opens and not inside:
        return MAX_INSIDE
    return 0 if closes or not inside else inside - 1


class File(NamedTuple):
    """A file: its path, its resolved path `target`, and the target's modification time and size."""

    path: str
    target: str
    time: int
    size: int


@dataclass(slots=True)
class _Imports:
    """A search for a document's imports under the `rules`, started at the event loop's time `began`."""

    rules: Rules
    began: float
    looking: asyncio.Task[list[File]]


class ImportedFiles:
    """The imported files of one client's documents."""

    def __init__(self, exclusions: Exclusions) -> None:
        self._exclusions = exclusions
        self._imports: dict[str, _Imports] = {}
        self._outlines: dict[File, Outline] = {}
        self._reading: asyncio.Task[None] | None = None
        # A separate thread: a folder that does not answer blocks nothing else, and the search continues when it does.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="codespec-imports")

    def known(self, document: Document, opened: Collection[str]) -> tuple[tuple[str, Outline], ...]:
        """Return the paths and outlines of a document's imported files that are not `opened`, or () during a search."""
        imports = self._imports.get(document.uri)
        if imports is None or imports.rules is not self._exclusions.rules or not imports.looking.done():
            return ()
        closed = [file for file in imports.looking.result() if file.path not in opened and file.target not in opened]
        return tuple((file.path, self._outlines.get(file, ())) for file in closed)

    async def look(self, document: Document) -> None:
        """Search for the files that a document imports, if the last search is old. Waits at most DECISION_TIMEOUT_S."""
        imports, at = self._imports.get(document.uri), now()
        old = imports is not None and (at - imports.began >= MAX_SEARCH_AGE_S and imports.looking.done())
        if imports is None or old or imports.rules is not self._exclusions.rules:
            if imports is not None:
                imports.looking.cancel()
            task = asyncio.get_running_loop().create_task(self._look(document, self._exclusions.rules))
            imports = self._imports[document.uri] = _Imports(self._exclusions.rules, at, task)
        left = imports.began + DECISION_TIMEOUT_S - at
        if left > 0 and not imports.looking.done():
            await asyncio.wait([imports.looking], timeout=left)

    async def read(self, seconds: float) -> None:
        """Wait up to `seconds` for the outlines of the imported files."""
        if self._reading is not None and not self._reading.done():
            await asyncio.wait([self._reading], timeout=seconds)

    def close(self, uri: str) -> None:
        imports = self._imports.pop(uri, None)
        if imports is not None:
            imports.looking.cancel()

    async def end(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _look(self, document: Document, rules: Rules) -> list[File]:
        """Find the imported files, and start to outline the new ones."""
        loop, rows = asyncio.get_running_loop(), import_rows(document.buffer.lines)
        files = await loop.run_in_executor(self._thread, find_files, document.file, rows, rules) if rows else []
        files = files[:MAX_OUTLINED]
        unread = [file for file in files if file not in self._outlines]
        if unread and (self._reading is None or self._reading.done()):
            self._reading = loop.create_task(self._read(unread))
        return files

    async def _read(self, files: Sequence[File]) -> None:
        """Outline each file in a worker process. If the process dies or takes too long, the outline is empty."""
        for file in files:
            while len(self._outlines) >= MAX_KEPT:
                del self._outlines[next(iter(self._outlines))]
            self._outlines[file] = []
            language = find_language(path=file.target)
            if not language:
                continue
            with contextlib.suppress(WorkerDied):
                worker = Worker(SERVICE, language)
                try:
                    blocks = await worker.ask_beside(file.target, OUTLINE_TIMEOUT_S)
                    self._outlines[file] = [Block(*each) for each in blocks]
                finally:
                    worker.close()


def find_files(uri: str, rows: Sequence[str], rules: Rules, beside: int = 0) -> list[File]:
    """Return the sendable files that a document imports, and up to `beside` others of its folder. Blocks on files."""
    files = list[File]()
    try:
        file, repository = rules.repository_of(uri)
        if repository is None:
            return []
        others = _beside(file)[:beside] if beside and file.suffix != ".ipynb" else []  # notebook files are JSON
        paths = dict.fromkeys((*find_imported(rows, file, repository), *others))
        for path, target in rules.sendable(paths, repository):
            state = target.stat()
            files.append(File(str(path), str(target), state.st_mtime_ns, state.st_size))
    except (OSError, ValueError, RuntimeError):  # a missing file, an invalid name, or a cycle of links
        pass
    return files


def _beside(file: Path) -> list[Path]:
    """Return the other files in a file's folder with the same suffix, most recently changed first."""
    names = islice(file.parent.iterdir(), MAX_NAMES)
    others = [path for path in names if path.suffix == file.suffix and path != file and path.is_file()]
    return sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)


def read_text(path: str) -> str:
    """Return the text of a file, or "" if it is not UTF-8 text, too long or unreadable."""
    try:
        return decode_text(read_regular(Path(path), MAX_SIDE))
    except (OSError, NotUtf8):
        return ""
