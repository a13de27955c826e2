"""What a `language.toml` says: the facts of a language that no query can express. Unknown fields are errors."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any


class GrammarDataError(ValueError):
    """A `language.toml` or `contexts.scm` that says something this package does not understand."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        super().__init__(f"{path.parent.name}/{path.name}:{line}: {message}")
        self.path, self.line = path, line


@dataclass(frozen=True, slots=True)
class StringRule:
    """One kind of string literal. `close` is `open` where the file does not say; `escape` is the regular
    expression of what hides a quote; `interpolation` opens code inside.
    """

    open: str
    close: str = ""
    multiline: bool = False
    escape: str = r"\\\r?(?s:.)"
    interpolation: str = ""


@dataclass(frozen=True, slots=True)
class Language:
    """One language. Words and markers are literal text, `atoms` are regular expressions of code that only looks
    like a string, comment or bracket.
    """

    name: str
    module: str  # the wheel's module
    ids: tuple[str, ...]  # editors' language ids
    files: tuple[str, ...]  # file name globs
    brackets: tuple[str, ...]  # such as "()"
    folder: Path
    function: str = "language"  # the module's function that gives the grammar
    line_comments: tuple[str, ...] = ()
    block_comments: tuple[tuple[str, str], ...] = ()
    doc_comments: tuple[str, ...] = ()  # comment openers that begin documentation
    docstrings: bool = False  # a string that begins a block documents it
    nested_comments: bool = False
    strings: tuple[StringRule, ...] = ()
    atoms: tuple[str, ...] = ()
    heredoc: str = ""  # regular expression; group 1 is the word that ends it
    block_brackets: str = ""  # opening brackets that hold statements
    value_before: str = r"[=(,:\[]"  # regular expression: a `{` after it holds no statements
    value_words: tuple[str, ...] = ()  # nor does one after these
    block_openers: tuple[str, ...] = ()  # what ends a head and opens a block
    operators: str = ""  # bytes that end an operator
    members: tuple[str, ...] = ()  # what a member's name follows
    import_words: tuple[str, ...] = ()
    signature_words: tuple[str, ...] = ()
    signature_pattern: str = ""  # the same as a regular expression
    restart_words: tuple[str, ...] = ()  # begin a statement and never stand inside brackets
    restart_pattern: str = ""  # the same as a regular expression
    head_words: tuple[str, ...] = ()  # begin a head that `head_end` ends
    head_end: str = ""
    flat_words: tuple[str, ...] = ()  # begin a head whose block is not indented
    continuation_words: tuple[str, ...] = ()  # begin a line and belong to the statement above
    closing_words: tuple[str, ...] = ()  # end a block that a word opened
    # Begin a part of a block, whose statements lie deeper.
    label_words: tuple[str, ...] = ("case", "default", "public", "private", "protected")
    item: str = "[A-Za-z_@]"  # regular expression: what a line of the outermost code begins with
    anchors: tuple[str, ...] = ()  # the same, of lines that are hardly ever inside a string or comment, best first
    window_opening: str = ""  # what a window must begin with that does not begin the file
    indented_opening: str = ""  # the same where the window begins with an indented line
    placeholder: str = "CSPEC"
    terminator: str = ""  # ends a statement
    indent: str = "4"  # columns of one level, "0" where there are none, or "tab"
    default: str = "statement"  # the context where nothing else is said


def load_language(folder: Path) -> Language:
    """Reads `folder/language.toml`. Raises GrammarDataError with file and line where it is not understood."""
    path = folder / "language.toml"
    text, table = _read(path)
    known = {item.name for item in fields(Language)} - {"name", "folder"}
    for key in table.keys() - known:
        raise GrammarDataError(path, _line_of_key(text, key), f"unknown field {key!r}")
    for item in fields(Language):
        if item.name in known and item.default is MISSING and item.name not in table:
            raise GrammarDataError(path, 1, f"the field {item.name!r} is missing")
    values = {key: _frozen(value) for key, value in table.items() if key != "strings"}
    strings = tuple(_string_rule(path, text, rule) for rule in table.get("strings", []))
    return Language(name=folder.name, folder=folder, strings=strings, **values)


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """The file's text and fields; those that it does not name come from the language it `inherits` from."""
    text = path.read_text(encoding="utf-8")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise GrammarDataError(path, _line_of_error(str(error)), str(error)) from error
    parent = table.pop("inherits", "")
    if not parent:
        return text, table
    above = path.parent.parent / parent / path.name
    if not above.is_file():
        raise GrammarDataError(path, _line_of_key(text, "inherits"), f"inherits from {parent!r}, which is no language")
    return text, {**_read(above)[1], **table}


def _string_rule(path: Path, text: str, rule: dict[str, Any]) -> StringRule:
    for key in rule.keys() - {item.name for item in fields(StringRule)}:
        raise GrammarDataError(path, _line_of_key(text, key), f"unknown field {key!r} of a string")
    return StringRule(**{"close": rule["open"], **rule})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _line_of_key(text: str, key: str) -> int:
    for number, line in enumerate(text.splitlines(), 1):
        if line.split("=")[0].strip() == key or f"{key} =" in line:
            return number
    return 1


def _line_of_error(message: str) -> int:
    digits = message.partition("at line ")[2].partition(",")[0]
    return int(digits) if digits.isdigit() else 1
