"""Define the contexts, and a cursor as a value that can be sent as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum


class Context(StrEnum):
    """The syntactic context at the tip of a text. A `contexts.scm` may use only these names as captures."""

    COMMENT = "comment"  # inside a comment
    DOCSTRING = "docstring"  # inside a documentation string or comment (a docstring, `/** … */`, `///`)
    STRING = "string"  # inside a string literal, except its interpolations
    IMPORT = "import"  # inside an import, include, use or package statement
    SIGNATURE = "signature"  # inside the head of a function or type: name, parameters, result
    ARGUMENTS = "arguments"  # directly inside the brackets of a call
    CLOSING = "closing"  # right after a closing bracket, where further closers are likely
    BLOCK_START = "block_start"  # right after a block opener (`:`, `{`, `then`), on the same line
    INDENT = "indent"  # in the white space at the start of a line
    OPERATOR = "operator"  # right after an operator or an assignment sign
    IDENTIFIER = "identifier"  # inside a word, or right after a token that a member's name follows (`.`, `::`)
    STATEMENT = "statement"  # anywhere else in code
    FREE_TEXT = "free_text"  # prose: Markdown paragraphs, text between tags
    UNKNOWN = "unknown"  # no grammar for this language (the draft length is not capped)


TEXT_LIKE = frozenset({Context.COMMENT, Context.DOCSTRING, Context.STRING, Context.FREE_TEXT})
# These describe the last token; the others describe the construct around the tip.
OF_LAST_TOKEN = frozenset({Context.CLOSING, Context.BLOCK_START, Context.OPERATOR, Context.IDENTIFIER})
NAMES = frozenset(context.value for context in Context)


class CursorError(ValueError):
    """Raised for an invalid sent cursor; the message names the field."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The context at a tip, the brackets open there and the language's name.

    `open_brackets` has the outermost first. `indent` is the expected indent of the next statement, in characters of
    white space.
    """

    context: Context = Context.UNKNOWN
    open_brackets: str = ""
    indent: int = 0
    language: str = ""

    def as_dict(self) -> dict[str, str | int]:
        """Return plain JSON values that `Cursor.parse` reads back."""
        return {**asdict(self), "context": self.context.value}

    @classmethod
    def parse(cls, sent: Mapping[str, object]) -> Cursor:
        """Parse the output of `as_dict`. Absent fields take their defaults. Raises CursorError naming the bad field."""
        unknown = sent.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise CursorError(f"cursor has no field {min(unknown)!r}")
        context, brackets = sent.get("context", "unknown"), sent.get("open_brackets", "")
        indent, language = sent.get("indent", 0), sent.get("language", "")
        if not isinstance(context, str) or context not in NAMES:
            raise CursorError(f"cursor.context must be one of {', '.join(Context)}")
        if isinstance(brackets, list | tuple) and all(isinstance(item, str) for item in brackets):
            brackets = "".join(brackets)
        if not isinstance(brackets, str):
            raise CursorError("cursor.open_brackets must be a text such as '([' or a list of brackets")
        if isinstance(indent, bool) or not isinstance(indent, int) or indent < 0:
            raise CursorError("cursor.indent must be a whole number of characters, 0 or more")
        if not isinstance(language, str):
            raise CursorError("cursor.language must be a language's name")
        return cls(Context(context), brackets, indent, language)
