"""Decide whether to start a completion at a cursor, its shape (line, statement or block), and where to end it.

The end depends on syntax if the language has a grammar, otherwise on indentation. The shape and each filter may propose
an end; the end detected at the earliest byte is used, so the result does not depend on the sizes of drafts and tokens.
A byte of a completion is certain once no later byte can cause its removal.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from codespec_grammars import CodeEnd, Cut, Scope, Surroundings, find_place, only_closer_missing, read_surroundings

from codespec.api.types import CompletionRequest, Shape
from codespec.text.align import complete_utf8_length
from codespec.text.filters import (
    Assignment,
    BlankRun,
    ByteLoop,
    Filter,
    LineLoop,
    Markers,
    MostLines,
    RepeatedLine,
    SecondDocstring,
    has_word,
    lines_below,
)
from codespec.text.fim_templates import FAMILIES, family_tokens

_OPENERS = (b":", b"{", b"(", b"[", b",")
_CLOSERS = b")]};,"
_QUOTES = ("'", '"', "`")
_HEAD = re.compile(rb"\s*(?:if|for|switch|while|else)\b")  # a `;` in a loop head ends no statement
_CALLED = re.compile(r"!?\(|\[")  # after a name: the name is complete and is called or indexed


def resolve_scope(shape: Shape, place: Surroundings | None, before: bytes, right: bytes) -> Scope:
    """Return the scope of the completion at a cursor.

    `before` is the text before the cursor, and `right` is the rest of the cursor's line. The shape "auto" means the
    line if there is text to the right of the cursor or the cursor is in a string or comment. If only closing brackets
    are to the right of the cursor, the completion includes the lines inside the brackets that the line opens. In all
    other cases, "auto" means the block if a block was just opened, else the statement; without a grammar, it means the
    block after an opener or on an empty line, else the line.
    """
    if shape == "line":
        return Scope.LINE
    if place is None:
        line = before.rpartition(b"\n")[2].rstrip()
        goes_on = right.strip() or (line and not line.endswith(_OPENERS))
        return Scope.LINE if shape != "block" and goes_on else Scope.BLOCK
    if place.in_text:
        return Scope.LINE
    if shape == "block":
        return Scope.BLOCK
    if right.strip(_CLOSERS + b" \t"):
        return Scope.LINE
    if right.strip() and not place.opened:
        return Scope.REST
    return Scope.BLOCK if place.opened else Scope.STATEMENT


def why_not(place: Surroundings | None, before: bytes, right: bytes) -> str:
    """Return a clause that says why no completion starts at the cursor, or "" if one may start."""
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
    data = place.rules.data
    if not before.endswith(b";") or right.strip() or "{" not in data.block_brackets or data.closing_words:
        return False
    brackets = place.state.brackets
    within = bool(brackets) and not brackets[-1][0].block
    return not within and _HEAD.match(place.line) is None


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


# Control tokens of common model families, which some models write as text. Tokens that look like ordinary code, such as
# [SUFFIX], are left out.
MARKERS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|fim_pad|>", "<EOT>", "</s>", "\n```"),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    *(name for family in FAMILIES for name in family_tokens(family) if name.startswith("<")),
)

_TAGS = re.compile("<(?:" + "|".join(re.escape(mark[1:]) for mark in MARKERS if mark[0] == "<") + ")")

MAX_LINES = 12  # non-blank lines, the default limit for shape "auto"
LOOKED_AT = 2048  # bytes of the cursor's line checked for repetition
MAX_RIGHT = 2048  # bytes of the rest of the line to compare
MAX_COPIES = 32  # copies that may have begun, of which only a line that repeats itself has more
_CLOSING_SIGNS = b")]}>\"'` \t"
LOOKED_BELOW = 8192  # bytes after the cursor to compare, more than a model reads


class Ending:
    """Detector of the end of one completion."""

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
            *([Assignment(line, place.rules.data.condition)] if place and not place.in_text else []),
            *([SecondDocstring(place)] if place and place.rules.data.docstrings else []),
            *([MostLines(MAX_LINES)] if shape == "auto" else []),
        ]
        scope = resolve_scope(shape, place, before, self._right)
        self._rest = RestOfLine(self._right)
        self._finder = CodeEnd(place, scope) if place else IndentEnd(scope, before, self._right)
        self._text = bytearray()
        self.idle = why_not(place, before, self._right) if shape == "auto" else ""  # reason not to start, or ""
        self.cut: int | None = None  # length of the completion in bytes, once the end is found
        self.reason = ""  # explains the end

    def advance(self, data: bytes) -> None:
        """Append bytes, which may end in the middle of a UTF-8 character."""
        self._text += data
        self._finder.advance(data)
        self._rest.advance(data)
        for filter_ in self._filters:
            filter_.advance(self._text)
        self._decide()

    def finish(self) -> None:
        """Mark the completion as finished and resolve pending decisions."""
        self._finder.finish()
        for filter_ in self._filters:
            filter_.finish(self._text)
        self._decide()
        if self.cut is None:
            self.cut = self._finished(bytes(self._text))

    @property
    def certain(self) -> int:
        """The number of leading bytes of the completion that no later byte can remove."""
        if self.cut is not None:
            return self.cut
        text = bytes(self._text)
        certain = min(len(text.rstrip()), self._finder.certain, *(filter_.certain for filter_ in self._filters))
        return self._shown(text[:certain], self._rest.least.__getitem__)

    def _decide(self) -> None:
        cuts = [cut for cut in (self._finder.cut, *(filter_.cut for filter_ in self._filters)) if cut]
        if self.cut is None and cuts:
            first = min(cuts)
            self.reason = first.reason
            self.cut = self._finished(bytes(self._text[: first.keep]))

    def _finished(self, text: bytes) -> int:
        """Return how many bytes of the finished text to keep, or 0 if the kept bytes would contain no word."""
        # A copy of the rest of the line is removed, or trailing white space if the rest of the line is blank.
        keep = self._shown(text, self._rest.left.__getitem__)
        self.reason = self.reason if keep else "nothing worth showing is left"
        return keep

    def _shown(self, text: bytes, measure: Callable[[int], int]) -> int:
        text = text[: complete_utf8_length(text)]
        shown = measure(len(text)) if self._right.strip() else len(text.rstrip())
        return shown if has_word(text[:shown]) else 0


def begin_endings(request: CompletionRequest) -> list[Ending | None]:
    """Return an end detector for each choice of a request, or None for each choice of a raw request or a warm-up."""
    if request.shape == "raw" or request.max_tokens == 0:
        return [None] * request.n
    place = find_place(request.language, request.path, request.prefix.encode(), request.suffix.encode())
    around = read_surroundings(place.language, place.prefix, place.suffix, sent=request.cursor)
    return [Ending(request.shape, around, request.prefix, request.suffix) for _ in range(request.n)]


def markers_beside(prefix: str, suffix: str) -> tuple[bytes, ...]:
    """Return the control tokens that end a completion: all that occur in neither the prefix nor the suffix."""
    known = {*_TAGS.findall(prefix), *_TAGS.findall(suffix)}
    return tuple(
        mark.encode()
        for mark in MARKERS
        if mark not in known and (mark[0] == "<" or (mark.strip() not in prefix and mark not in suffix))
    )


class IndentEnd:
    """Detector of the end of a completion by indentation alone, for languages without a grammar."""

    def __init__(self, scope: Scope, before: bytes, right: bytes) -> None:
        line = before.rpartition(b"\n")[2]
        self._block = scope is not Scope.LINE
        self._indent = len(line) - len(line.lstrip(b" \t"))
        self._deeper = line.rstrip().endswith(_OPENERS)
        self._closer = right.strip()[:1] if right.strip()[:1] in (b")", b"]", b"}") else b""
        self._text = bytearray()
        self._shown = 0  # length without trailing white space
        self._depth = 0  # number of open brackets in the text
        self._new = False  # whether the current line is blank so far
        self._width = 0  # indent of the current line
        self.cut: Cut | None = None

    def advance(self, data: bytes) -> None:
        for byte in data:
            if self.cut is not None:
                return
            self._text.append(byte)
            self._look(byte)

    def finish(self) -> None:
        """Do nothing, because this detector never has pending decisions."""

    @property
    def certain(self) -> int:
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
        """Return whether the current line, which starts with `byte`, is indented too little to belong to the block."""
        # After an opener, the block must be indented more than the cursor's line, except for the closing bracket.
        return self._width < self._indent or (self._deeper and self._width == self._indent and byte not in b")]}")

    def _count(self, byte: int) -> None:
        """End the completion before an unmatched closing bracket that is already to the right of the cursor."""
        if not self._closer or byte not in b"()[]{}":
            return
        self._depth += 1 if byte in b"([{" else -1
        if self._depth < 0:
            if byte == self._closer[0]:
                self.cut = Cut(len(self._text), len(self._text) - 1, "its end is to the right of the cursor")
            self._closer = b""


class RestOfLine:
    """Matcher of a completion against `right`, the rest of the cursor's line, which must not be inserted twice.

    `left[n]` is the number of bytes to keep of a completion that ends after n bytes: without a copy of the rest of the
    line or of its beginning, and without trailing spaces if the rest of the line starts with a space.
    """

    def __init__(self, right: bytes) -> None:
        self._stems = _stems(right[:MAX_RIGHT])
        self._spaced = right[:1].isspace()
        self._text = bytearray()
        self._shown = [0]  # by length of the completion: the length without trailing spaces, if the rest has a space
        self._begun: list[list[int]] = [[] for _ in self._stems]  # sizes of the copies that have begun, longest first
        self.left = [0]
        self.least = [0]  # the least number of bytes to keep of any completion that begins with the same n bytes

    def advance(self, data: bytes) -> None:
        for byte in data:
            self._text.append(byte)
            end = len(self._text)
            self._shown.append(self._shown[-1] if self._spaced and byte in b" \t" else end)
            self._begun = [
                [size + 1 for size in (*sizes, 0) if size < len(stem) and stem[size] == byte][:MAX_COPIES]
                for stem, sizes in zip(self._stems, self._begun, strict=True)
            ]
            found = list(zip(self._stems, self._begun, strict=True))
            size = next((size for stem, sizes in found for size in sizes if self._is_copy(stem, size)), 0)
            self.left.append(self.left[self._shown[end - size]] if size else self._shown[end])
            begun = [end - size for stem, sizes in found for size in (*sizes, 0) if size < len(stem)]
            self.least.append(min([self.left[end], *(self.left[self._shown[start]] for start in begun)]))

    def _is_copy(self, stem: bytes, size: int) -> bool:
        """Return whether the last bytes of the text, which begin `stem`, are whole words and not only closing signs."""
        before, copy, after = self._text[-size - 1 : -size], stem[:size], stem[size : size + 1]
        if has_word(before) and has_word(copy[:1]):
            return False
        return not after or bool(copy.strip(_CLOSING_SIGNS) and not (has_word(copy[-1:]) and has_word(after)))


def _stems(right: bytes) -> list[bytes]:
    """Return the rest of a line with and without its closing brackets, or [] for closing brackets alone."""
    whole = right.strip()
    stem = whole.rstrip(_CLOSERS + b" \t")
    if stem:
        return list(dict.fromkeys((whole, stem)))
    return [whole] if whole and not set(whole) & set(b")]}") else []
