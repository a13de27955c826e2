"""Cut what a model writes where the language hardly allows it: a second docstring, an assignment as a condition.

As the other filters, they decide at one byte, which later bytes do not move.
"""

from __future__ import annotations

import re

from codespec_grammars import Surroundings

from codespec.text.filters import Filter, Lines

MAX_CONDITION = 400  # bytes of a line up to an assignment
_QUOTES = (b'"""', b"'''")
_DOCSTRING = re.compile(rb"[ \t]*[rRuU]?(\"\"\"|''')")
_MAY_BE_DOCSTRING = re.compile(rb"[ \t]*[rRuU]?(?:\"{0,2}|'{0,2})$")
_STRING = re.compile(rb"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\\n])*`")
_PAIR = re.compile(rb"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
_NESTED = 4  # brackets in brackets
_OF_OPERATORS = tuple(bytes([byte]) for byte in b"=!<>:+-*/%&|^~?.")  # before an `=`
_HEAD = re.compile(rb"\b(?:if|elif|elsif|elseif|while|assert)\b")


class SecondDocstring(Lines):
    """Cut above a docstring that follows another one, or that stands above the block's own."""

    def __init__(self, place: Surroundings) -> None:
        super().__init__(place.line)
        entry = place.state.stack[-1][0] if place.state.stack else None
        self._inside = entry.close if entry is not None and entry.close in _QUOTES else b""
        own = place.opened and _DOCSTRING.match(place.below) is not None
        self._after = own or _ends_docstring(place.before[: len(place.before) - len(place.line)])
        self._head = place.line.strip()

    def _add(self, text: bytearray, line: bytes, end: int) -> None:
        if self._found(text, line):
            return
        whole, begun = line.strip(), _DOCSTRING.match(line)
        if self._inside:
            if self._inside in line:
                self._after, self._inside = whole.endswith(self._inside), b""
        elif begun is not None:
            rest = whole[whole.index(begun[1]) + 3 :]
            self._after = rest.endswith(begun[1])
            self._inside = b"" if begun[1] in rest else begun[1]
        elif whole and (self._start or whole != self._head):
            self._after = False

    def _sure(self, text: bytearray, unfinished: bytes) -> int:
        if self._found(text, unfinished):
            return self.certain
        held = self._after and not self._inside and _MAY_BE_DOCSTRING.match(unfinished)
        return len((text[: self._start] if held else text).rstrip())

    def _found(self, text: bytearray, line: bytes) -> bool:
        """Cut above a line that begins a second docstring; its quotes must be in the text, not before the cursor."""
        begun = _DOCSTRING.match(line) if self._after and not self._inside else None
        seen = begun.end() + self._start - (0 if self._start else len(self._line)) if begun else 0
        if seen > 0:
            self._end(seen, len(text[: self._start].rstrip()), "there is a docstring already")
        return seen > 0


def _ends_docstring(above: bytes) -> bool:
    """Return whether a text ends with a string that is a statement of its own."""
    text = above.rstrip()
    if not text.endswith(_QUOTES):
        return False
    start = text.rfind(text[-3:], 0, len(text) - 3)
    begun = _DOCSTRING.match(text, text.rfind(b"\n", 0, start) + 1) if start >= 0 else None
    return begun is not None and begun.end() == start + 3


class Assignment(Filter):
    """Cut before an assignment in the condition that the cursor's line has begun, as in `if (done = true)`.

    `line` is the line up to the cursor; `condition` matches a head up to the assigned name (`Language.condition`).
    """

    def __init__(self, line: bytes, condition: str) -> None:
        super().__init__()
        self._line = line
        self._condition = re.compile(condition.encode()) if condition and _HEAD.search(line) else None

    def _look(self, text: bytearray) -> None:
        for index in range(max(1, self.read), len(text) if self._condition else 0):
            if text[index - 1] == 0x0A:
                self._condition = None
                break
            if text[index - 1] == 0x3D and text[index] not in b"=>~" and self._assigns(bytes(text[: index - 1])):
                self._end(index + 1, len(text[: index - 1].rstrip()), "a condition assigns nothing")
                return
        self.certain = len((text[:-1] if text.endswith(b"=") else text).rstrip())

    def _assigns(self, written: bytes) -> bool:
        """Return whether an `=` behind the written text assigns."""
        code = self._line + written
        if self._condition is None or len(code) > MAX_CONDITION or code[-1:] in _OF_OPERATORS:
            return False
        code = _STRING.sub(b"_", code)
        for _ in range(_NESTED):
            code = _PAIR.sub(b"", code)
        return self._condition.search(code) is not None
