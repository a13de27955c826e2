"""The contexts, and what is known about a cursor as a value that can be sent. Does not know how a context is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Context(StrEnum):
    """What is being written at the tip of a text. Each name is also the only kind of capture a `contexts.scm` may use.

    comment      inside a comment
    docstring    inside a string or comment that documents (a docstring, `/** … */`, `///`)
    string       inside a string literal, its interpolations excepted
    import       inside an import, include, use or package statement
    signature    inside the head of a function or type: name, parameters, result
    arguments    directly inside the brackets of a call
    closing      right after a closing bracket, where further closers tend to come
    block_start  right after what opens a block (`:`, `{`, `then`), still on its line
    indent       in the white space that begins a line
    operator     right after an operator or an assignment sign
    identifier   inside a word, or right after what a member's name must follow (`.`, `::`)
    statement    anywhere else in code
    free_text    prose: Markdown paragraphs, text between tags
    unknown      no grammar for this language, so nothing can be said (and nothing is capped)
    """

    COMMENT = "comment"
    DOCSTRING = "docstring"
    STRING = "string"
    IMPORT = "import"
    SIGNATURE = "signature"
    ARGUMENTS = "arguments"
    CLOSING = "closing"
    BLOCK_START = "block_start"
    INDENT = "indent"
    OPERATOR = "operator"
    IDENTIFIER = "identifier"
    STATEMENT = "statement"
    FREE_TEXT = "free_text"
    UNKNOWN = "unknown"


TEXT_LIKE = frozenset({Context.COMMENT, Context.DOCSTRING, Context.STRING, Context.FREE_TEXT})
# These describe the last token, the others what the tip lies in.
OF_LAST_TOKEN = frozenset({Context.CLOSING, Context.BLOCK_START, Context.OPERATOR, Context.IDENTIFIER})
NAMES = frozenset(context.value for context in Context)


class CursorError(ValueError):
    """A sent cursor that is none; the message names the field."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The context at the tip, the brackets open there (outermost first), the indent that the next statement is
    expected to have (in characters of white space) and the language's name."""

    context: Context = Context.UNKNOWN
    open_brackets: str = ""
    indent: int = 0
    language: str = ""

    def as_dict(self) -> dict[str, str | int]:
        """Plain JSON values; `Cursor.parse` reads them back."""
        return {
            "context": self.context.value,
            "open_brackets": self.open_brackets,
            "indent": self.indent,
            "language": self.language,
        }

    @classmethod
    def parse(cls, sent: Mapping[str, object]) -> Cursor:
        """Reads what `as_dict` wrote; absent fields take their defaults. Raises CursorError naming the bad field."""
        unknown = sent.keys() - {"context", "open_brackets", "indent", "language"}
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
            raise CursorError("cursor.indent must be a whole number of columns, 0 or more")
        if not isinstance(language, str):
            raise CursorError("cursor.language must be a language's name")
        return cls(Context(context), brackets, indent, language)
