"""Read the data of each language, and find the language at a cursor.

`language.toml` describes what a tree-sitter query cannot express, and `names.toml` describes the names of variables. A
slot in `names.toml` is a position in a syntax tree, where `kind` is any child of a node of that kind, `kind.field` is
the child in that field, `kind.` is a child without a field, `kind.0` is the first of several named children, and
`kind.+` is a later one.

`injections.toml` lists hosts, the languages whose files contain regions of other languages, such as a script in HTML.
Regions are found by their opening and closing markers only, because a file that is being edited often has syntax
errors. In a PHP file, the text outside the tags is HTML, in which PHP code is replaced by blanks.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePath
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
MAX_DEPTH = 3  # nested regions, such as a script in HTML in a Markdown fence
MAX_BEHIND = 1 << 16  # bytes of the suffix that are searched for the end of a region
_PHP = re.compile(rb"<\?(?:php\b|=)")
# The end of PHP code. A tag inside a string or a block comment does not end the code, one in a line comment does.
_PHP_END = re.compile(
    rb"""(?P<end>\?>)|/\*(?s:.)*?(?:\*/|\Z)|(?://|\#(?!\[))(?:(?!\?>)[^\n])*+"""
    rb"""|"(?s:\\.|[^"\\])*+(?:"|\Z)|'(?s:\\.|[^'\\])*+(?:'|\Z)"""
)
_VISIBLE = re.compile(rb"[^\s]")


class GrammarDataError(ValueError):
    """Raised for an invalid `language.toml`, `names.toml` or `contexts.scm`, with the file and the line."""

    def __init__(self, message: str, path: Path, line: int) -> None:
        super().__init__(f"{path.parent.name}/{path.name}:{line}: {message}")
        self.path, self.line = path, line


@dataclass(frozen=True, slots=True)
class StringRule:
    """A kind of string literal."""

    open: str
    close: str = ""  # by default, `open`
    multiline: bool = False
    escape: str = r"\\\r?(?s:.)"  # regular expression for an escaped character
    interpolation: tuple[str, ...] = ()  # openers of code inside the string
    bracket: bool = False  # the literal is a bracket around code in which quotes are not special


@dataclass(frozen=True, slots=True)
class LiteralRule:
    """A kind of string or comment whose opener is a regular expression."""

    pattern: str
    # In the closers, `{1}` stands for group 1 of the opener and `{pair}` for the bracket that closes that group.
    close: str = ""  # text that closes the literal
    close_pattern: str = ""  # regular expression, by default for `close`; without both, the literal ends the file
    multiline: bool = True
    escape: str = ""
    interpolation: tuple[str, ...] = ()
    before: str = ""  # regular expression for the part of the line before the opener
    within: str = ""  # required innermost open bracket
    nested: bool = False  # whether pairs of group 1 and its closing bracket may occur inside the literal
    indented: bool = False  # whether the literal ends before a line that is not indented more than its first line
    comment: bool = False


@dataclass(frozen=True, slots=True)
class Language:
    """The data of one language. Strings are literal text, unless a field's comment says otherwise."""

    name: str
    module: str  # module of the grammar's wheel
    ids: tuple[str, ...]  # editors' language ids
    files: tuple[str, ...]  # file name globs
    brackets: tuple[str, ...]  # such as "()"
    folder: Path
    function: str = "language"  # the module's function that returns the grammar
    line_comments: tuple[str, ...] = ()
    line_comment_rest: str = r"[^\n]*"  # regular expression
    block_comments: tuple[tuple[str, str], ...] = ()
    doc_comments: tuple[str, ...] = ()  # comment openers that begin documentation
    docstrings: bool = False  # a string at the start of a block is a docstring
    nested_comments: bool = False
    strings: tuple[StringRule, ...] = ()
    literals: tuple[LiteralRule, ...] = ()  # tried before all other tokens
    begins_in: str = ""  # the opener of the literal that a file begins in
    atoms: tuple[str, ...] = ()
    starts: str = ""  # where literals, atoms, heredocs and indented texts begin, if no string, comment or bracket does
    heredoc: str = ""  # regular expression; its group that matches is the word that ends it
    heredoc_rest: str = r"\r?$"  # regular expression for the text after that word
    arithmetic: str = ""  # brackets inside which a heredoc's opener is an operator
    indented_text: str = ""  # regular expression for the end of a line whose text is in the more indented lines below
    indented_parent: str = ""  # the same for the part of that line whose width is the limit of the indent
    block_brackets: str = ""  # opening brackets that contain statements
    value_before: str = r"[=(,:\[]"  # regular expression: a `{` after it contains no statements
    value_words: tuple[str, ...] = ()  # words after which a `{` contains no statements
    block_openers: tuple[str, ...] = ()  # tokens that end a head and open a block
    operators: str = ""  # bytes that end an operator
    members: tuple[str, ...] = ()  # tokens before a member's name
    import_words: tuple[str, ...] = ()
    signature_words: tuple[str, ...] = ()
    signature_pattern: str = ""  # regular expression, in addition to the words
    restart_words: tuple[str, ...] = ()  # begin a statement and never occur inside brackets
    restart_pattern: str = ""  # regular expression, in addition to the words
    head_words: tuple[str, ...] = ()  # begin a head that a colon ends
    condition: str = ""  # regular expression for a line up to an `=` that would assign in a condition by mistake
    flat_words: tuple[str, ...] = ()  # begin a head whose block is not indented
    continuation_words: tuple[str, ...] = ()  # begin a line that continues the statement above
    closing_words: tuple[str, ...] = ()  # end a block that a word opened
    # Begin a part of a block, whose statements are indented further.
    label_words: tuple[str, ...] = ("case", "default", "public", "private", "protected")
    item: str = "[A-Za-z_@]"  # regular expression for the start of a top-level line
    anchors: tuple[str, ...] = ()  # the same for lines that are rarely inside a string or comment, best first
    window_opening: str = ""  # text to put before a window that doesn't begin at the start of the file
    indented_opening: str = ""  # the same for a window that begins with an indented line
    placeholder: str = "CSPEC"
    terminator: str = ""  # ends a statement
    indent: str = "4"  # columns of one level, "0" if the language has no indents, or "tab"
    default: str = "statement"  # context if nothing else applies


@dataclass(frozen=True, slots=True)
class NameFacts:
    """The kinds of syntax nodes (or slots, if a comment says so) with which the names in a language are found."""

    names: frozenset[str]  # leaves that are names
    member_names: frozenset[str] = frozenset()  # leaves that are members, unless a slot of `bindings` declares them
    shorthands: frozenset[str] = frozenset()  # leaves, or nodes with one leaf, that are both a name and a key
    functions: frozenset[str] = frozenset()
    blocks: frozenset[str] = frozenset()  # other scopes of variables
    classes: frozenset[str] = frozenset()
    heads: frozenset[str] = frozenset()  # scopes, unless they are the head of a function
    bindings: frozenset[str] = frozenset()  # slots
    patterns: frozenset[str] = frozenset()  # slots between a binding and its names
    imports: frozenset[str] = frozenset()  # slots that bind an imported name
    outer: frozenset[str] = frozenset()  # slots that belong to the scope around the innermost one
    hoisted: frozenset[str] = frozenset()  # declarations that bind in the function instead of the block
    not_bound: frozenset[str] = frozenset()  # statements whose names a function does not bind
    keys: frozenset[str] = frozenset()  # slots of other names with the same spelling: labels, keyword arguments
    members: frozenset[str] = frozenset()  # slots of a member, whose object is the sibling before
    bare_members: bool = False  # whether a member may be written without its object
    redeclares: bool = False  # whether a second binding in a scope is a new variable, as with Rust's `let`


@cache
def languages() -> dict[str, Language]:
    """Return the data of each language by name, from the folders that contain a `language.toml`."""
    return {path.parent.name: load_language(path.parent) for path in sorted(FOLDER.glob("*/language.toml"))}


def language_names() -> tuple[str, ...]:
    """Return the names of all languages, sorted."""
    return tuple(languages())


def find_language(language_id: str = "", path: str = "") -> str:
    """Return the name of a language, given an editor's language id or a file name, or "" if both are unknown."""
    return _find(languages(), language_id, path)


def _find(table: Mapping[str, Language | Host], language_id: str, path: str) -> str:
    file = PurePath(path).name
    by_id = (name for name, data in table.items() if language_id and language_id in (name, *data.ids))
    by_file = (name for name, data in table.items() if any(fnmatchcase(file, glob) for glob in data.files))
    return next(by_id, next(by_file, ""))


def load_language(folder: Path) -> Language:
    """Read `folder/language.toml`. Raises GrammarDataError if the file is invalid."""
    path = folder / "language.toml"
    text, table = _read(path, Language)
    for item in fields(Language):
        if item.default is MISSING and item.name not in {*table, "name", "folder"}:
            raise GrammarDataError(f"the field {item.name!r} is missing: add it", path, 1)
    for key, kind in (("strings", StringRule), ("literals", LiteralRule)):
        for rule in table.get(key, ()):
            _demand_known(path, text, rule, kind)
    table["strings"] = tuple(StringRule(**{"close": rule["open"], **rule}) for rule in table.get("strings", ()))
    table["literals"] = tuple(LiteralRule(**rule) for rule in table.get("literals", ()))
    return Language(name=folder.name, folder=folder, **table)


@cache
def load_name_facts(language: str) -> NameFacts | None:
    """Read a language's `names.toml`, if there is one. Raises GrammarDataError if the file is invalid."""
    path = FOLDER / find_language(language) / "names.toml"
    if path.parent == FOLDER or not path.is_file():
        return None
    _, table = _read(path, NameFacts)
    return NameFacts(**table | {key: frozenset(value) for key, value in table.items() if isinstance(value, tuple)})


def _read(path: Path, kind: type[Language | NameFacts]) -> tuple[str, dict[str, Any]]:
    """Return the text and fields of a file, including fields inherited from the language that `inherits` names."""
    text = path.read_text(encoding="utf-8")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        digits = str(error).partition("at line ")[2].partition(",")[0]
        raise GrammarDataError(str(error), path, int(digits) if digits.isdigit() else 1) from error
    parent = table.pop("inherits", "")
    _demand_known(path, text, table, kind)
    table = _frozen(table)
    if not parent:
        return text, table
    above = path.parent.parent / parent / path.name
    if not above.is_file():
        line = _line_of(text, "inherits")
        raise GrammarDataError(f"{parent!r} has no {path.name} to inherit: name another language", path, line)
    return text, {**_read(above, kind)[1], **table}


def _demand_known(path: Path, text: str, table: dict[str, Any], kind: type[Any]) -> None:
    for key in table.keys() - ({item.name for item in fields(kind)} - {"name", "folder"}):
        raise GrammarDataError(f"unknown field {key!r}: choose one of those in language.py", path, _line_of(text, key))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _line_of(text: str, key: str) -> int:
    lines = enumerate(text.splitlines(), 1)
    return next((number for number, line in lines if line.split("=")[0].strip() == key or f"{key} =" in line), 1)


class Place(NamedTuple):
    """The text around a cursor in a single language ("" if unknown); `inside` is true in a region of a host's file."""

    language: str
    prefix: bytes
    suffix: bytes
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """A kind of region in which a file contains another language; `injections.toml` describes the fields."""

    open: str
    close: str
    language: str
    named: str = ""
    names: dict[str, str] = field(default_factory=dict)
    fence: bool = False

    def closer(self, opened: re.Match[bytes]) -> re.Pattern[bytes]:
        """Return the pattern for the end of a region that begins with the match `opened`."""
        marks = opened[2] if self.fence else b""
        fence = f"{re.escape(marks[:1].decode())}{{{len(marks)},}}"
        return _compiled(self.close.replace("{fence}", fence))

    def language_of(self, opened: re.Match[bytes]) -> str:
        """Return the language of a region, or "" if the region is the host's own text or the language is unknown."""
        found = _compiled(self.named).search(opened[1]) if self.named else None
        if found is None:
            return self.language
        name = found[1].decode("utf-8", "replace").lower()
        return self.names.get(name, find_language(name, f"x.{name}"))


@dataclass(frozen=True, slots=True)
class Host:
    """A language whose files contain regions of other languages. Text between the patterns `skip` has no regions."""

    ids: tuple[str, ...]
    files: tuple[str, ...]
    skip: tuple[tuple[str, str], ...]
    regions: tuple[Region, ...]


def find_place(language_id: str, path: str, prefix: bytes, suffix: bytes) -> Place:
    """Return the language at the cursor of a file, and the text around the cursor in that language."""
    name = find_language(language_id, path)
    host = _find(_hosts(), language_id, "" if find_language(language_id) else path)
    return _inside(host or name, Place(name, prefix, suffix))


def _inside(host: str, place: Place, depth: int = 0) -> Place:
    inner = _page(place) if host == "php" else _region(host, place)
    if inner is None or depth == MAX_DEPTH:
        return place
    return _inside(inner.language, inner, depth + 1)


def _region(name: str, place: Place) -> Place | None:
    """Return the text of the region around the cursor, or None if the cursor is in the host language's own text."""
    host = _hosts().get(name)
    if host is None:
        return None
    marks, at = _Marks(host, place.prefix), 0
    while (mark := marks.next(at)) is not None:
        region, opener = mark
        closer = region.closer(opener) if isinstance(region, Region) else region
        closed = closer.search(place.prefix, opener.end())
        if closed is None:
            language = region.language_of(opener) if isinstance(region, Region) else ""
            end = closer.search(place.suffix[:MAX_BEHIND])
            suffix = place.suffix if end is None else place.suffix[: end.start()]
            return Place(language, place.prefix[opener.end() :], suffix, inside=True) if language else None
        at = closed.end()
    return None if at else _begun_above(host, place)


class _Marks:
    """Finder of the markers that open a host's regions or skipped parts. Each marker is searched for once."""

    def __init__(self, host: Host, text: bytes) -> None:
        kinds: list[tuple[Region | re.Pattern[bytes], str]] = [(each, each.open) for each in host.regions]
        kinds += [(_compiled(end), begin) for begin, end in host.skip]
        self._text = text
        self._ahead = [(kind, _compiled(opener), _compiled(opener).search(text)) for kind, opener in kinds]

    def next(self, at: int) -> tuple[Region | re.Pattern[bytes], re.Match[bytes]] | None:
        """Return the next opening marker at or after byte `at`, and the region or skipped part that it opens."""
        self._ahead = [
            (kind, pattern, found if found is None or found.start() >= at else pattern.search(self._text, at))
            for kind, pattern, found in self._ahead
        ]
        marks = [(kind, found) for kind, _, found in self._ahead if found is not None]
        return min(marks, key=lambda mark: mark[1].start(), default=None)


def _begun_above(host: Host, place: Place) -> Place | None:
    """Return the region that begins above the given text, if the next marker after the cursor closes it, or None."""
    behind = place.suffix[:MAX_BEHIND]
    first = _Marks(host, behind).next(0)
    for region in (each for each in host.regions if not each.fence and each.language and each.named):
        closed = _compiled(region.close).search(behind)
        if closed is not None and (first is None or closed.start() < first[1].start()):
            return Place(region.language, place.prefix, behind[: closed.start()], inside=True)
    return None


def _page(place: Place) -> Place | None:
    """Return the HTML around the cursor with PHP code replaced by blanks, or None if the cursor is in PHP code."""
    text, parts, at, code = place.prefix, list[bytes](), 0, False
    if not _PHP.search(text) and not text.lstrip().startswith(b"<"):
        return None  # PHP code may begin above the text
    while True:
        ends = (end for end in _PHP_END.finditer(text, at) if end["end"])
        mark = next(ends, None) if code else _PHP.search(text, at)
        if mark is None:
            break
        page = b"" if code else text[at : mark.start()]
        parts.append(page + _VISIBLE.sub(b" ", text[at + len(page) : mark.end()]))
        at, code = mark.end(), not code
    if code:
        return None
    return Place("html", b"".join((*parts, text[at:])), place.suffix, inside=True)


@cache
def _hosts() -> dict[str, Host]:
    table = tomllib.loads((FOLDER / "injections.toml").read_text(encoding="utf-8"))
    hosts = dict[str, Host]()
    for name, values in table.items():
        like = table.get(values.get("like", ""), {})
        regions = (*values["regions"], *like.get("regions", ()))
        skip = (*values.get("skip", ()), *like.get("skip", ()))
        made = tuple(Region(**each) for each in regions)
        hosts[name] = Host(tuple(values["ids"]), tuple(values["files"]), tuple(map(tuple, skip)), made)
    return hosts


@cache
def _compiled(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())
