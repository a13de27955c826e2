"""Load a language's `language.toml`, the facts that a query can't express, and `names.toml`: what binds names.

In `names.toml`, a slot is a position in a tree: `kind` is any child of such a node, `kind.field` the child in that
field, `kind.` a child in no field, `kind.0` the first of several named children and `kind.+` a later one.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePath
from typing import Any

FOLDER = Path(__file__).resolve().parent


class GrammarDataError(ValueError):
    """Raised for an invalid `language.toml` or `contexts.scm`; the message gives file and line."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        super().__init__(f"{path.parent.name}/{path.name}:{line}: {message}")
        self.path, self.line = path, line


@dataclass(frozen=True, slots=True)
class StringRule:
    """One kind of string literal.

    `close` defaults to `open`. `escape` is a regular expression for an escaped character, `interpolation` holds the
    openers of code inside the string.
    """

    open: str
    close: str = ""
    multiline: bool = False
    escape: str = r"\\\r?(?s:.)"
    interpolation: tuple[str, ...] = ()
    bracket: bool = False  # brackets around code in which quotes are not special


@dataclass(frozen=True, slots=True)
class LiteralRule:
    """A kind of string or comment whose opener is a regular expression.

    In `close` and `close_pattern`, `{1}` stands for the opener's first group, `{pair}` for the bracket that closes it.
    The opener is one only if `before`, a regular expression, matches the text of the line up to it, and if `within` is
    the innermost open bracket. `nested`: group 1 may occur inside, in pairs with its closer. `indented`: the literal
    ends before a line that is not indented more than its own (`indented_parent`).
    """

    pattern: str
    close: str = ""  # inserted to close the literal
    close_pattern: str = ""  # regular expression, by default `close`; neither: it goes on to the end of the file
    multiline: bool = True
    escape: str = ""
    interpolation: tuple[str, ...] = ()
    before: str = ""
    within: str = ""
    nested: bool = False
    indented: bool = False
    comment: bool = False


@dataclass(frozen=True, slots=True)
class Language:
    """One language.

    Words and markers are literal text. `atoms` are regular expressions for code that only looks like a string, comment
    or bracket.
    """

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
    """The names of one language: node kinds, and slots where a comment says so."""

    names: frozenset[str]  # leaves that are names
    member_names: frozenset[str] = frozenset()  # leaves that are members, unless a slot of `bindings` declares them
    shorthands: frozenset[str] = frozenset()  # leaves, or nodes of one leaf, that are a name and a key at once
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
    keys: frozenset[str] = frozenset()  # slots that are not the same name: labels, keyword arguments
    members: frozenset[str] = frozenset()  # slots of a member of an object, which is the sibling before it
    bare_members: bool = False  # whether a member is also written without its object
    redeclares: bool = False  # whether a second binding in a scope is another name, as Rust's `let`


@cache
def languages() -> dict[str, Language]:
    """Return all languages by name: one for each folder beside this file with a `language.toml`."""
    return {path.parent.name: load_language(path.parent) for path in sorted(FOLDER.glob("*/language.toml"))}


def language_names() -> tuple[str, ...]:
    """Return the names of all languages, sorted."""
    return tuple(languages())


def find_language(language_id: str = "", path: str = "") -> str:
    """Return the name of the language with that editor language id, else of the file name, or "" if unknown."""
    for data in languages().values():
        if language_id and language_id in (data.name, *data.ids):
            return data.name
    file = PurePath(path).name
    of_file = (data.name for data in languages().values() if any(fnmatchcase(file, glob) for glob in data.files))
    return next(of_file, "")


def load_language(folder: Path) -> Language:
    """Read `folder/language.toml`. Raises GrammarDataError with file and line if it is invalid."""
    path = folder / "language.toml"
    text, table = _read(path, Language)
    for item in fields(Language):
        if item.default is MISSING and item.name not in {*table, "name", "folder"}:
            raise GrammarDataError(path, 1, f"the field {item.name!r} is missing")
    for key, kind in (("strings", StringRule), ("literals", LiteralRule)):
        for rule in table.get(key, ()):
            _demand_known(path, text, rule, kind)
    table["strings"] = tuple(StringRule(**{"close": rule["open"], **rule}) for rule in table.get("strings", ()))
    table["literals"] = tuple(LiteralRule(**rule) for rule in table.get("literals", ()))
    return Language(name=folder.name, folder=folder, **table)


@cache
def load_name_facts(language: str) -> NameFacts | None:
    """Return a language's facts, or None if it has none. Raises GrammarDataError if its file is invalid."""
    path = FOLDER / find_language(language) / "names.toml"
    if path.parent == FOLDER or not path.is_file():
        return None
    _, table = _read(path, NameFacts)
    return NameFacts(**table | {key: frozenset(value) for key, value in table.items() if isinstance(value, tuple)})


def _read(path: Path, kind: type[Language | NameFacts]) -> tuple[str, dict[str, Any]]:
    """Return the file's text and fields. Missing fields come from the language that it `inherits` from."""
    text = path.read_text(encoding="utf-8")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        digits = str(error).partition("at line ")[2].partition(",")[0]
        raise GrammarDataError(path, int(digits) if digits.isdigit() else 1, str(error)) from error
    parent = table.pop("inherits", "")
    _demand_known(path, text, table, kind)
    table = _frozen(table)
    if not parent:
        return text, table
    above = path.parent.parent / parent / path.name
    if not above.is_file():
        raise GrammarDataError(path, _line_of(text, "inherits"), f"inherits from {parent!r}, not a language")
    return text, {**_read(above, kind)[1], **table}


def _demand_known(path: Path, text: str, table: dict[str, Any], kind: type[Any]) -> None:
    for key in table.keys() - ({item.name for item in fields(kind)} - {"name", "folder"}):
        raise GrammarDataError(path, _line_of(text, key), f"unknown field {key!r}")


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _line_of(text: str, key: str) -> int:
    lines = enumerate(text.splitlines(), 1)
    return next((number for number, line in lines if line.split("=")[0].strip() == key or f"{key} =" in line), 1)
