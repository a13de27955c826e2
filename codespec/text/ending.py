"""Decide whether an editor completion begins at a cursor, its shape (line, statement or block), and where it ends.

Uses syntax if the language has a grammar, indentation otherwise. Of the shape's end and the filters', the one that
becomes decidable at the earliest byte wins, so drafts, rounds and token boundaries cannot move it. No byte is
reported as certain that a later byte could remove. Operates on bytes, not on tokens.
"""

from __future__ import annotations

import re

from codespec_grammars import CodeEnd, Cut, Scope, Surroundings, find_place, only_closer_missing, read_surroundings

from codespec.api.types import CompletionRequest, Shape
from codespec.text.align import complete_utf8_length
from codespec.text.filters import (
    MAX_RIGHT,
    BlankRun,
    ByteLoop,
    Filter,
    LineLoop,
    Markers,
    MostLines,
    RepeatedLine,
    RestOfLine,
    has_word,
    lines_below,
)
from codespec.text.fim_templates import FAMILIES, family_tokens
from codespec.text.slips import Assignment, SecondDocstring

_OPENERS = (b":", b"{", b"(", b"[", b",")
_CLOSERS = b")]};,"
_QUOTES = ("'", '"', "`")
_HEAD = re.compile(rb"\s*(?:if|for|switch|while|else)\b")  # a `;` in a loop head ends no statement
_CALLED = re.compile(r"!?\(|\[")  # after a name: the name is complete and is called or indexed


def resolve_scope(shape: Shape, place: Surroundings | None, before: bytes, right: bytes) -> Scope:
    """Return how much to complete.

    `before` ends with the cursor's line up to the cursor; `right` is the rest of that line. `auto` completes the line
    if there is text to the right or the cursor is in a string or comment. If only closers are to the right, the
    brackets that the line opens are completed too. Otherwise it completes the block if one was just opened, else the
    statement. Without a grammar, it completes the line, or on an empty line the block.
    """
    if shape == "line":
        return Scope.LINE
    if place is None:
        return Scope.BLOCK if shape == "block" else _by_indent(before, right)
    if place.in_text:
        return Scope.LINE
    if shape == "block":
        return Scope.BLOCK
    if right.strip(_CLOSERS + b" \t"):
        return Scope.LINE
    if right.strip() and not place.opened:
        return Scope.REST
    return Scope.BLOCK if place.opened else Scope.STATEMENT


def _by_indent(before: bytes, right: bytes) -> Scope:
    line = before.rpartition(b"\n")[2]
    if right.strip() or (line.strip() and not line.rstrip().endswith(_OPENERS)):
        return Scope.LINE
    return Scope.BLOCK


def why_not(place: Surroundings | None, before: bytes, right: bytes) -> str:
    """Return the reason not to start a completion at the cursor, as a clause, or "" if one may start."""
    left, after = before.decode("utf-8", "ignore")[-1:], right.decode("utf-8", "ignore")
    in_text = place is not None and place.in_text
    if _is_word(after[:1]):
        return "the cursor is inside a word" if _is_word(left) else "a word follows the cursor"
    if before.endswith((b")", b"]", b"}")) and not in_text:
        return "the cursor is right after a closing bracket"
    if place is None or in_text:
        return ""
    if _is_word(left) and _CALLED.match(after):
        return "the name before the cursor is complete, and its bracket follows"
    if not _is_word(left) and after[:1] in _QUOTES:
        return "a string follows the cursor"
    if _is_finished(place, before, right):
        return "the statement before the cursor is finished"
    if only_closer_missing(place):
        return "only a closing bracket is missing, and it is already to the right of the cursor"
    return ""


def _is_finished(place: Surroundings, before: bytes, right: bytes) -> bool:
    """Return whether the cursor is right after a `;` that ends a statement of a brace language (not in a loop head)."""
    if not before.endswith(b";") or right.strip() or "{" not in place.data.block_brackets or place.data.closing_words:
        return False
    brackets = place.state.brackets
    within = bool(brackets) and not brackets[-1][0].block
    return not within and _HEAD.match(place.line) is None


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


# Control tokens of common model families, as models that saw them as text spell them. Tokens that look like ordinary
# code, such as [SUFFIX], are left out.
MARKERS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|fim_pad|>", "<EOT>", "</s>", "\n```"),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    *(name for family in FAMILIES for name in family_tokens(family) if name.startswith("<")),
)

_TAGS = re.compile("<(?:" + "|".join(re.escape(mark[1:]) for mark in MARKERS if mark[0] == "<") + ")")

MAX_LINES = 12  # non-blank lines, the default limit for shape "auto"
LOOKED_AT = 2048  # bytes of the cursor's line checked for repetition
LOOKED_BELOW = 8192  # bytes below the cursor: more than the model reads of them


class Ending:
    """End detector of one completion.

    `cut` is the end in bytes, or None while the text grows; `reason` explains it. `idle` is the reason not to start a
    completion at all, or "" if one may start.
    """

    def __init__(self, shape: Shape, place: Surroundings | None, prefix: str, suffix: str) -> None:
        before, after = prefix.encode(), suffix.encode()
        self._right = after[:MAX_RIGHT].partition(b"\n")[0].rstrip(b"\r")
        line = before[max(before.rfind(b"\n") + 1, len(before) - LOOKED_AT) :]
        self._filters: list[Filter] = [
            Markers(markers_beside(prefix, suffix)),
            RepeatedLine(line, lines_below(after[:LOOKED_BELOW])),
            LineLoop(line),
            ByteLoop(),
            BlankRun(),
            *([Assignment(line, place.data.condition)] if place and not place.in_text else []),
            *([SecondDocstring(place)] if place and place.data.docstrings else []),
            *([MostLines(MAX_LINES)] if shape == "auto" else []),
        ]
        scope = resolve_scope(shape, place, before, self._right)
        self._rest = RestOfLine(self._right)
        self._finder = CodeEnd(place, scope) if place else IndentEnd(scope, before, self._right)
        self._text = bytearray()
        self.idle = why_not(place, before, self._right) if shape == "auto" else ""
        self.cut: int | None = None
        self.reason = ""

    def advance(self, data: bytes) -> None:
        """Append bytes; they may end inside a character."""
        self._text += data
        self._finder.advance(data)
        self._rest.advance(data)
        for filter_ in self._filters:
            filter_.advance(self._text)
        self._decide()

    def finish(self) -> None:
        """Mark the text as complete and decide everything that waited for more bytes."""
        self._finder.finish()
        for filter_ in self._filters:
            filter_.finish(self._text)
        self._decide()
        if self.cut is None:
            self.cut = self._finished(bytes(self._text))

    @property
    def certain(self) -> int:
        """Number of leading bytes that no later byte can remove."""
        if self.cut is not None:
            return self.cut
        text = bytes(self._text)
        certain = min(len(text.rstrip()), self._finder.certain, *(filter_.certain for filter_ in self._filters))
        return self._sure(text[:certain])

    def _decide(self) -> None:
        cuts = [cut for cut in (self._finder.cut, *(filter_.cut for filter_ in self._filters)) if cut]
        if self.cut is None and cuts:
            first = min(cuts)
            self.reason = first.reason
            self.cut = self._finished(bytes(self._text[: first.keep]))

    def _finished(self, text: bytes) -> int:
        """Return how many bytes of the complete text to keep, 0 if the rest is not worth showing.

        Drops the text that is already to the right of the cursor, or trailing white space if there is none.
        """
        text = text[: complete_utf8_length(text)]
        keep = self._rest.left(len(text)) if self._right.strip() else len(text.rstrip())
        if has_word(text[:keep]):
            return keep
        self.reason = "nothing worth showing is left"
        return 0

    def _sure(self, text: bytes) -> int:
        text = text[: complete_utf8_length(text)]
        sure = self._rest.least(len(text)) if self._right.strip() else len(text.rstrip())
        return sure if has_word(text[:sure]) else 0


def begin_endings(request: CompletionRequest) -> list[Ending | None]:
    """Return the ending of each choice, or None for raw requests and warm-ups."""
    if request.shape == "raw" or request.max_tokens == 0:
        return [None] * request.n
    known = request.cursor.language if request.cursor is not None else ""
    place = find_place(request.language, request.path, request.prefix.encode(), request.suffix.encode(), known)
    around = read_surroundings(place.language, place.prefix, place.suffix, sent=request.cursor)
    return [Ending(request.shape, around, request.prefix, request.suffix) for _ in range(request.n)]


def markers_beside(prefix: str, suffix: str) -> tuple[bytes, ...]:
    """Return the markers that end a completion here: those that the surrounding text does not contain itself."""
    known = {*_TAGS.findall(prefix), *_TAGS.findall(suffix)}
    return tuple(
        mark.encode()
        for mark in MARKERS
        if mark not in known and (mark[0] == "<" or (mark.strip() not in prefix and mark not in suffix))
    )


class IndentEnd:
    """End by indentation alone, for languages without a grammar."""

    def __init__(self, scope: Scope, before: bytes, right: bytes) -> None:
        line = before.rpartition(b"\n")[2]
        self._block = scope is not Scope.LINE
        self._indent = len(line) - len(line.lstrip(b" \t"))
        self._deeper = bool(line.strip()) and line.rstrip().endswith((b":", b"{", b"(", b"[", b","))
        self._closer = right.strip()[:1] if right.strip()[:1] in (b")", b"]", b"}") else b""
        self._text = bytearray()
        self._shown = 0  # bytes without trailing white space
        self._depth = 0  # depth of brackets that the text itself opened
        self._new = False  # the current line is blank so far
        self._width = 0  # indent of the current line
        self.cut: Cut | None = None

    def advance(self, data: bytes) -> None:
        """Append bytes."""
        for byte in data:
            if self.cut is not None:
                return
            self._text.append(byte)
            self._look(byte)

    def finish(self) -> None:
        """Do nothing: no decision is pending."""

    @property
    def certain(self) -> int:
        """Number of bytes without trailing white space."""
        return self.cut.keep if self.cut else self._shown

    def _look(self, byte: int) -> None:
        if byte == 0x0A:
            if not self._block and self._shown:
                self.cut = Cut(len(self._text), self._shown, "the line is complete")
            self._new, self._width = True, 0
        elif byte in b" \t":
            self._width += 1
        elif byte in b"\r\f\v":
            self._new = False
        else:
            if self._new and self._block and self._shown and self._is_shallow(byte):
                self.cut = Cut(len(self._text), self._shown, "the block is complete")
                return
            self._new = False
            self._count(byte)
            self._shown = len(self._text)

    def _is_shallow(self, byte: int) -> bool:
        """Return whether a line that starts with `byte` is indented less than the cursor's line.

        After an opener, an equal indent counts as shallow too, unless the line starts with a closing bracket.
        """
        return self._width < self._indent or (self._deeper and self._width == self._indent and byte not in b")]}")

    def _count(self, byte: int) -> None:
        """Cut before a closing bracket that is unmatched in the text and already to the right of the cursor."""
        if not self._closer or byte not in b"()[]{}":
            return
        self._depth += 1 if byte in b"([{" else -1
        if self._depth < 0:
            known = byte == self._closer[0]
            self.cut = (
                Cut(len(self._text), len(self._text) - 1, "its end is to the right of the cursor") if known else None
            )
            self._closer = b""
