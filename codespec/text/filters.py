"""What is cut from a completion whatever the syntax: markers, repetitions of the text around it and of itself, crumbs.

Each filter is a pure function of the bytes so far and says where the text ends (`cut`, decided at a byte, moved by
nothing that follows) and how much is `certain`. None changes a byte: indentation and line ends stay as they were
written. Knows bytes and lines; knows no language, no tokens and no rounds.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from codespec_grammars import Cut

from codespec.text.streaming import StopFinder

LONGEST_PERIOD, LEAST_LOOP = 32, 48  # bytes of a unit that repeats within a line, and of all its repetitions
MOST_LINES = 8  # of a block that repeats
_CLOSING = b")]};,"
_CLOSING_SIGNS = b")]}>\"'` \t"
_LOOP = re.compile(rb"([^\n]{1,%d}?)\1{3}" % LONGEST_PERIOD)


class Look(NamedTuple):
    """What a filter found: the end, if there is one, and how many bytes no later one can take back."""

    cut: Cut | None
    certain: int


def end_markers(text: bytes, markers: StopFinder) -> Look:
    """Ends before a control token that the model spelled out as text."""
    keep = markers.find(text)
    if keep is None:
        return Look(None, len(text) - markers.held_back(text))
    seen = min(text.index(marker, keep) + len(marker) for marker in markers.stops if marker in text[keep:])
    return Look(Cut(seen, keep, "a control token was spelled out"), keep)


def repeated_line(text: bytes, line: bytes, below: bytes, *, ended: bool = False) -> Look:
    """Ends above a line that already stands below the cursor.

    `line` is the cursor's line up to it, `below` the next line that shows something; `ended`: no more bytes come.
    """
    if len(below.strip()) < 2 or not _has_word(below):
        return Look(None, len(text.rstrip()))
    start = 0
    while True:
        end = text.find(b"\n", start)
        whole = end >= 0 or ended
        shown = (b"" if start else line) + text[start : end if end >= 0 else len(text)]
        keep = len(text[:start].rstrip())
        if whole and shown.rstrip() == below:
            return Look(Cut(end + 1 if end >= 0 else len(text), keep, "the next line repeats what stands below"), keep)
        if end < 0:
            return Look(None, keep if below.startswith(shown.rstrip()) else len(text.rstrip()))
        start = end + 1


def most_lines(text: bytes, most: int) -> Look:
    """Ends behind so many lines that show something."""
    start = shown = 0
    while (end := text.find(b"\n", start)) >= 0:
        shown += bool(text[start:end].strip())
        if shown == most:
            return Look(Cut(end + 1, len(text[:end].rstrip()), "it is long enough"), len(text[:end].rstrip()))
        start = end + 1
    return Look(None, len(text.rstrip()))


def line_loop(text: bytes, line: bytes = b"") -> Look:
    """Ends behind the first of several equal blocks of lines: three of up to two lines, two of more than three.
    `line` is the cursor's line up to it.
    """
    lines = _visible_lines(text, line)
    complete = len(lines) - bool((line + text).rpartition(b"\n")[2].strip())
    runs = [0] * (MOST_LINES + 1)
    for index, (end, shown) in enumerate(lines[:complete]):
        for lag in range(1, MOST_LINES + 1):
            runs[lag] = runs[lag] + 1 if index >= lag and lines[index - lag][1] == shown else 0
            if runs[lag] >= _needed(lag) and any(_has_word(one) for _, one in lines[index - lag + 1 : index + 1]):
                keep = lines[index - runs[lag]][0]
                return Look(Cut(text.find(b"\n", end) + 1, keep, "it repeats itself"), keep)
    return Look(None, _before_runs(lines, complete, runs, len(text.rstrip())))


def _before_runs(lines: list[tuple[int, bytes]], complete: int, runs: list[int], certain: int) -> int:
    """What no later line can take back: all above the lines that repeat others up to the end, an unfinished one too."""
    for lag in range(1, min(MOST_LINES, complete) + 1):
        unfinished = complete < len(lines)
        goes_on = not unfinished or lines[complete - lag][1].startswith(lines[complete][1])
        if goes_on and (runs[lag] or unfinished):
            certain = min(certain, lines[complete - runs[lag] - 1][0])
    return certain


def byte_loop(text: bytes, start: int = 0) -> Look:
    """Ends behind the first repetition of something short within a line, once there are more. Lines that end before
    `start` were looked at already.
    """
    begin = text.rfind(b"\n", 0, start) + 1
    for line in text[begin:].split(b"\n"):
        if len(line) >= LEAST_LOOP and _LOOP.search(line) and (found := _first_loop(line)):
            keep = begin + found[1]
            return Look(Cut(begin + found[0], keep, "it repeats itself"), keep)
        begin += len(line) + 1
    line = text[text.rfind(b"\n") + 1 :]
    held = [_run(line, lag) - lag for lag in range(1, min(LONGEST_PERIOD, len(line) // 2) + 1)]
    return Look(None, len(text) - max([0, *(size for lag, size in enumerate(held, 1) if _has_word(line[-lag:]))]))


def _first_loop(line: bytes) -> tuple[int, int] | None:
    """Behind which byte a loop is clear, and how much of the line is kept."""
    runs = [0] * (LONGEST_PERIOD + 1)
    for index in range(len(line)):
        for lag in range(1, LONGEST_PERIOD + 1):
            runs[lag] = runs[lag] + 1 if index >= lag and line[index - lag] == line[index] else 0
            if runs[lag] >= 3 * lag and runs[lag] + lag >= LEAST_LOOP and _has_word(line[index - lag + 1 : index + 1]):
                return index + 1, index + 1 - runs[lag] + lag
    return None


def _run(line: bytes, lag: int) -> int:
    """How many of the last bytes equal those `lag` before them."""
    size = 0
    while size + lag < len(line) and line[-1 - size] == line[-1 - size - lag]:
        size += 1
    return size


def without_overlap(text: bytes, right: bytes) -> int:
    """How much of a finished text is left when the rest of the cursor's line, `right`, or how that begins, is not
    written twice; nor is a space where one stands there."""
    keep = len(text)
    while size := _overlap(text[:keep], right):
        keep -= size
        keep = len(text[:keep].rstrip(b" \t")) if right[:1].isspace() else keep
    return len(text[:keep].rstrip(b" \t")) if right[:1].isspace() else keep


def _overlap(text: bytes, right: bytes) -> int:
    """How many bytes at the end of the text begin the rest of the line, up to the end of a word there."""
    for stem in _stems(right):
        for size in range(len(stem), 0, -1):
            split = _has_word(stem[size - 1 : size]) and _has_word(stem[size : size + 1])
            says = size == len(stem) or stem[:size].strip(_CLOSING_SIGNS)  # a closer may close what the text opened
            if says and not split and _ends_with(text, stem[:size]):
                return size
    return 0


def before_overlap(text: bytes, right: bytes) -> int:
    """How much `without_overlap` will leave at least, whatever follows."""
    least = without_overlap(text, right)
    for stem in _stems(right):
        for size in range(len(stem)):
            if text.endswith(stem[:size]):
                begun = text[: len(text) - size]
                least = min(least, without_overlap(begun.rstrip(b" \t") if right[:1].isspace() else begun, right))
    return least


def is_worthwhile(text: bytes) -> bool:
    """Whether a completion holds more than brackets, punctuation and white space."""
    return _has_word(text)


def _stems(right: bytes) -> list[bytes]:
    """How the rest of a line may be recognized: whole, or without the closers at its end. Closers alone say nothing."""
    whole = right.strip()
    stem = whole.rstrip(_CLOSING + b" \t")
    if stem:
        return list(dict.fromkeys((whole, stem)))
    return [whole] if whole and not set(whole) & set(b")]}") else []


def _ends_with(text: bytes, stem: bytes) -> bool:
    """Whether the text ends with the stem, and not as the end of a longer word."""
    before = text[len(text) - len(stem) - 1 : len(text) - len(stem)]
    return text.endswith(stem) and not (_has_word(before) and _has_word(stem[:1]))


def _visible_lines(text: bytes, before: bytes) -> list[tuple[int, bytes]]:
    """End and bytes of each line that shows something; the first begins with `before`, the last may be unfinished."""
    found, start = [], -len(before)
    for line in (before + text).split(b"\n"):
        if line.strip():
            shown = line.removesuffix(b"\r")
            found.append((max(0, start + len(shown)), shown))
        start += len(line) + 1
    return found


def _needed(lag: int) -> int:
    """How many lines must equal those `lag` above."""
    return {1: 2, 2: 4, 3: 3}.get(lag, lag)


def _has_word(text: bytes) -> bool:
    return any(byte >= 0x80 or chr(byte).isalnum() for byte in text)
