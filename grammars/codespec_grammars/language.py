"""Load `language.toml` files, which hold the facts of a language that a query can't express."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any


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
    head_words: tuple[str, ...] = ()  # begin a head that `head_end` ends
    head_end: str = ""
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


def load_language(folder: Path) -> Language:
    """Read `folder/language.toml`. Raises GrammarDataError with file and line if it is invalid."""
    path = folder / "language.toml"
    text, table = _read(path)
    known = {item.name for item in fields(Language)} - {"name", "folder"}
    for key in table.keys() - known:
        raise GrammarDataError(path, _line_of_key(text, key), f"unknown field {key!r}")
    for item in fields(Language):
        if item.name in known and item.default is MISSING and item.name not in table:
            raise GrammarDataError(path, 1, f"the field {item.name!r} is missing")
    values = {key: _frozen(value) for key, value in table.items() if key not in ("strings", "literals")}
    strings = tuple(
        StringRule(**{"close": rule["open"], **_rule(path, text, rule, StringRule)})
        for rule in table.get("strings", [])
    )
    literals = tuple(LiteralRule(**_rule(path, text, rule, LiteralRule)) for rule in table.get("literals", []))
    return Language(name=folder.name, folder=folder, strings=strings, literals=literals, **values)


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the file's text and fields. Missing fields come from the language that it `inherits` from."""
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
        raise GrammarDataError(path, _line_of_key(text, "inherits"), f"inherits from {parent!r}, not a language")
    return text, {**_read(above)[1], **table}


def _rule(path: Path, text: str, rule: dict[str, Any], kind: type[StringRule | LiteralRule]) -> dict[str, Any]:
    for key in rule.keys() - {item.name for item in fields(kind)}:
        raise GrammarDataError(path, _line_of_key(text, key), f"unknown field {key!r} of a string")
    return {key: _frozen(value) for key, value in rule.items()}


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
