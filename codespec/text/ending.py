"""The end of one completion in an editor: the shape's end and the filters, put together while the text grows.

Of all that may end the text, what is clear first counts. So neither drafts nor rounds nor tokens can move the end, and
nothing is certain that a later byte could take back. Knows bytes; knows no tokens and no rounds.
"""

from __future__ import annotations

import re
from typing import Protocol

from codespec_grammars import CodeEnd, Cut, Scope, Surroundings

from codespec.text.align import complete_utf8_length
from codespec.text.filters import (
    Look,
    before_overlap,
    byte_loop,
    end_markers,
    is_worthwhile,
    line_loop,
    most_lines,
    repeated_line,
    without_overlap,
)
from codespec.text.shape import resolve_scope, why_not
from codespec.text.streaming import StopFinder
from codespec.types import Shape

# Control tokens of the families in the field, as models that saw them as text spell them.
MARKERS = (
    *("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|fim_prefix|>", "<|fim_suffix|>"),
    *("<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<fim_prefix>", "<fim_suffix>"),
    *("<fim_middle>", "<file_sep>", "<reponame>", "<EOT>", "</s>", "\n```"),
)

_TAGS = re.compile("<(?:" + "|".join(re.escape(mark[1:]) for mark in MARKERS if mark[0] == "<") + ")")

MOST_LINES = 12  # that show something, where nobody asked for a shape: more is read by nobody
LOOKED_AT = 2048  # bytes around the cursor that a completion may repeat


class EndFinder(Protocol):
    """Finds the shape's end in a text that grows."""

    cut: Cut | None

    def advance(self, data: bytes) -> None:
        """Appends bytes."""

    def finish(self) -> None:
        """No more bytes come."""

    @property
    def certain(self) -> int:
        """How many bytes no later one can take back."""


class Ending:
    """Follows one completion; `cut` is where it ends, None while it grows, and `reason` why. `idle` says why none is to
    begin, "" where one may.
    """

    def __init__(self, shape: Shape, place: Surroundings | None, prefix: str, suffix: str) -> None:
        before, after = prefix.encode(), suffix.encode()
        self._right = after.partition(b"\n")[0].rstrip(b"\r")
        self._line = before[max(before.rfind(b"\n") + 1, len(before) - LOOKED_AT) :]
        self._below = next((line.rstrip() for line in after[:LOOKED_AT].split(b"\n")[1:] if line.strip()), b"")
        self._markers = StopFinder(markers_beside(prefix, suffix))
        scope = resolve_scope(shape, place, before, self._right)
        self._finder: EndFinder = _finder(place, scope, before, self._right)
        self._shape = shape
        self._text = bytearray()
        self._checked = 0
        self._looks: list[Look] = []
        self.idle = why_not(place, before, self._right) if shape == "auto" else ""
        self.cut: int | None = None
        self.reason = ""

    def advance(self, data: bytes) -> None:
        """Appends bytes; they may end inside a character."""
        self._text += data
        self._finder.advance(data)
        self._filter(ended=False)
        self._checked = len(self._text)

    def finish(self) -> None:
        """The text ended by itself: what waited for more is decided."""
        self._finder.finish()
        self._filter(ended=True)
        if self.cut is None:
            self.cut = self._finished(bytes(self._text))

    @property
    def certain(self) -> int:
        """How many bytes no later one can take back."""
        if self.cut is not None:
            return self.cut
        text = bytes(self._text)
        certain = min(len(text.rstrip()), self._finder.certain, *(look.certain for look in self._looks))
        return self._sure(text[:certain])

    def _filter(self, *, ended: bool) -> None:
        text = bytes(self._text)
        self._looks = [
            end_markers(text, self._markers),
            repeated_line(text, self._line, self._below, ended=ended),
            line_loop(text, self._line),
            byte_loop(text, self._checked),
            *([most_lines(text, MOST_LINES)] if self._shape == "auto" else []),
        ]
        cuts = [cut for cut in (self._finder.cut, *(look.cut for look in self._looks)) if cut]
        if self.cut is None and cuts:
            first = min(cuts)
            self.reason = first.reason
            self.cut = self._finished(text[: first.keep])

    def _finished(self, text: bytes) -> int:
        """What is left of the whole text: without what stands to the right already, or else without white space at the
        end; nothing where that is a crumb."""
        text = text[: complete_utf8_length(text)]
        keep = without_overlap(text, self._right) if self._right.strip() else len(text.rstrip())
        if is_worthwhile(text[:keep]):
            return keep
        self.reason = "nothing worth showing is left"
        return 0

    def _sure(self, text: bytes) -> int:
        text = text[: complete_utf8_length(text)]
        sure = before_overlap(text, self._right) if self._right.strip() else len(text.rstrip())
        return sure if is_worthwhile(text[:sure]) else 0


def markers_beside(prefix: str, suffix: str) -> tuple[bytes, ...]:
    """The markers that end a completion here: those that the text around it does not hold as text of its own."""
    known = {*_TAGS.findall(prefix), *_TAGS.findall(suffix)}
    return tuple(
        mark.encode()
        for mark in MARKERS
        if mark not in known and (mark[0] == "<" or (mark.strip() not in prefix and mark not in suffix))
    )


class IndentEnd:
    """The end by indentation alone, for languages without a grammar."""

    def __init__(self, scope: Scope, before: bytes, right: bytes) -> None:
        line = before.rpartition(b"\n")[2]
        self._block = scope is not Scope.LINE
        self._indent = len(line) - len(line.lstrip(b" \t"))
        self._deeper = bool(line.strip()) and line.rstrip().endswith((b":", b"{", b"(", b"[", b","))
        self._closer = right.strip()[:1] if right.strip()[:1] in (b")", b"]", b"}") else b""
        self._text = bytearray()
        self.cut: Cut | None = None

    def advance(self, data: bytes) -> None:
        """Appends bytes."""
        self._text += data
        text = bytes(self._text)
        ends = [self._block_end(text) if self._block else _line_end(text), self._closer_end(text)]
        self.cut = self.cut or min((end for end in ends if end), default=None)

    def finish(self) -> None:
        """Nothing waits."""

    @property
    def certain(self) -> int:
        """All but white space at the end."""
        return self.cut.keep if self.cut else len(self._text.rstrip())

    def _block_end(self, text: bytes) -> Cut | None:
        """Before the first line that is less indented than the cursor's line (or, after an opener, not more)."""
        for match in re.finditer(rb"\r?\n([ \t]*)(?=[^\s])", text):
            closes = text[match.end() : match.end() + 1] in b")]}"
            width = len(match[1])
            shallow = width < self._indent or (self._deeper and width == self._indent and not closes)
            if shallow and text[: match.start()].strip():
                return Cut(match.end() + 1, len(text[: match.start()].rstrip()), "the block is complete")
        return None

    def _closer_end(self, text: bytes) -> Cut | None:
        """Before a closing bracket that closes nothing in the text and stands to the right already."""
        depth = 0
        for match in re.finditer(rb"[()\[\]{}]", text) if self._closer else ():
            depth += 1 if match[0] in b"([{" else -1
            if depth < 0:
                known = match[0] == self._closer
                return Cut(match.end(), match.start(), "what closes it stands to the right") if known else None
        return None


def _finder(place: Surroundings | None, scope: Scope, before: bytes, right: bytes) -> EndFinder:
    return CodeEnd(place, scope) if place else IndentEnd(scope, before, right)


def _line_end(text: bytes) -> Cut | None:
    """The first line break behind something visible."""
    match = re.search(rb"\S[^\S\n]*\n", text)
    return Cut(match.end(), len(text[: match.end()].rstrip()), "the line is complete") if match else None
