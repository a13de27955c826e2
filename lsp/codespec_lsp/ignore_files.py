"""Patterns as .gitignore has them, over paths. Knows the pattern language; reads no file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line: `regex` over a path relative to the file's folder, with / between its parts."""

    line: str
    regex: re.Pattern[str]
    takes_back: bool
    folders_only: bool


class Patterns:
    """The lines of one file."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._patterns = [pattern for line in lines if (pattern := parse_line(line)) is not None]

    def match(self, path: str, is_folder: bool) -> Pattern | None:
        """The last line that says something about a path; None where none does."""
        found = None
        for pattern in self._patterns:
            if (is_folder or not pattern.folders_only) and pattern.regex.fullmatch(path):
                found = pattern
        return found


def parse_line(line: str) -> Pattern | None:
    """The pattern of a line; None for comments, blank lines and what can match nothing."""
    shown = line.rstrip("\r\n")
    text = _without_trailing_spaces(shown)
    if not text or text.startswith("#"):
        return None
    takes_back = text.startswith("!")
    text = text[1:] if takes_back else text
    folders_only = text.endswith("/")
    text = text[:-1] if folders_only else text
    anchored = "/" in text
    text = text.removeprefix("/")
    if not text:
        return None
    try:
        regex = re.compile(("" if anchored else "(?:.*/)?") + translate(text), re.DOTALL)
    except re.error:
        return None
    return Pattern(shown, regex, takes_back, folders_only)


def translate(glob: str) -> str:
    """A glob as a regular expression: * and ? do not cross a /, ** as a whole part does."""
    parts = glob.split("/")
    pieces = []
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            pieces.append(".+" if last else "(?:.*/)?")
        else:
            pieces.append(_part(part) + ("" if last else "/"))
    return "".join(pieces)


def _part(text: str) -> str:
    found, index = [], 0
    while index < len(text):
        character = text[index]
        index += 1
        if character == "*":
            found.append("[^/]*")
        elif character == "?":
            found.append("[^/]")
        elif character == "[":
            piece, index = _class(text, index)
            found.append(piece)
        elif character == "\\" and index < len(text):
            found.append(re.escape(text[index]))
            index += 1
        else:
            found.append(re.escape(character))
    return "".join(found)


def _class(text: str, index: int) -> tuple[str, int]:
    """A [class] that begins before `index`, and where it ends; an open one is a [ that stands for nothing."""
    negated = text[index : index + 1] in ("!", "^")
    start = index + negated
    end = text.find("]", start + 1)
    if end < 0:
        return r"(?!)", len(text)
    inside = text[start:end].replace("\\", "\\\\").replace("[", "\\[")
    inside = ("\\" + inside) if inside.startswith(("^", "]")) else inside
    return f"(?!/)[{'^' if negated else ''}{inside}]", end + 1


def _without_trailing_spaces(text: str) -> str:
    """Spaces at the end say nothing unless a backslash stands before them."""
    stripped = text.rstrip(" ")
    escaped = len(stripped) - len(stripped.rstrip("\\"))
    return stripped + " " if escaped % 2 and len(stripped) < len(text) else stripped
