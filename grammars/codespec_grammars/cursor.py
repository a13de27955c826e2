"""What is known about the tip of a text, as a value that can be sent. Knows no grammar and no text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codespec_grammars.contexts import NAMES, Context


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
