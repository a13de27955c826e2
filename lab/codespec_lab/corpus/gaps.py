"""Cut gaps to fill in and excerpts to predict out of held-out texts by a fixed rule, and check completions of gaps.

Documents are evenly spaced over their sorted list. A hash of the document's name, the kind of cut and the seed
decides where to cut, so no gap is hand-picked and every model gets the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from codespec.api.types import Completion, CompletionRequest, Shape
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.held_out import Task

MAX_LINES, MAX_BLOCKS = 400, 240  # gaps of an evaluation, over all rows
PREFIX_CHARS, SUFFIX_CHARS = 1200, 500
MIN_ABOVE = 5  # lines above a gap
LINE_CHARS = (10, 80)
BLOCK_LINES = (2, 3, 4)
BLOCK_CHARS = 240
LEAD_CHARS, EXCERPT_CHARS, MIN_EXCERPT = 150, 1500, 600
TURNS = 8  # passes over the documents of a row to find enough cuts
COMMENTS = ("#", "//", "/*", "*", '"', "'", "<!--", "--")
QUARTERS = 4

Cut = TypeVar("Cut")
Finder = Callable[[Document, int], Cut | None]
Complete = Callable[[Sequence[CompletionRequest]], Sequence[Completion]]
MAX_TOKENS: dict[Shape, int] = {"line": 40, "block": 96, "auto": 64}
BATCH = 8  # concurrent requests of the engine
LOOP_BYTES, LOOP_TIMES = 20, 3


@dataclass(frozen=True, slots=True)
class Gap:
    """A span cut out of a file: the text before it, the span itself, and the text after it."""

    package: str
    path: str
    language: str
    line: int  # from 1
    before: str
    answer: str
    behind: str

    @property
    def prefix(self) -> str:
        """The last whole lines before the gap, about PREFIX_CHARS characters."""
        if len(self.before) <= PREFIX_CHARS:
            return self.before
        border = self.before.find("\n", len(self.before) - PREFIX_CHARS)
        return self.before[border + 1 :] if border >= 0 else self.before[-PREFIX_CHARS:]

    @property
    def suffix(self) -> str:
        """The first whole lines after the gap, about SUFFIX_CHARS characters."""
        border = self.behind.rfind("\n", 0, SUFFIX_CHARS) + 1
        return (
            self.behind if len(self.behind) <= SUFFIX_CHARS else self.behind[: border if border > 1 else SUFFIX_CHARS]
        )


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A piece of a file; a model reads `lead` and predicts `body`."""

    lead: str
    body: str


def spread(documents: Sequence[Document], count: int, find: Finder[Cut]) -> list[Cut]:
    """Return `count` distinct cuts from evenly spaced documents, or fewer if the documents do not contain enough.

    `find` returns a document's cut in the given turn, or None; a document without a cut in turn 0 is skipped.
    """
    fit = [document for document in documents if find(document, 0) is not None]
    step = max(1.0, len(fit) / max(1, count))
    chosen = [fit[int(index * step)] for index in range(min(count, len(fit)))]
    found: dict[Cut, None] = {}
    for turn in range(TURNS):
        for document in chosen:
            cut = find(document, turn) if len(found) < count else None
            if cut is not None:
                found[cut] = None
    return list(found)


def excerpt_of(document: Document, turn: int) -> Excerpt | None:
    """Return about 1,500 characters from the middle of a document, from a line start; at most one per document."""
    text = document.text
    start = text.find("\n", max(0, (len(text) - EXCERPT_CHARS) // 2)) + 1
    piece = text[start : start + EXCERPT_CHARS]
    border = piece.find("\n", LEAD_CHARS) + 1
    if turn or not border or len(piece) < MIN_EXCERPT:
        return None
    return Excerpt(piece[:border], piece[border:])


def line_gaps(seed: int) -> Finder[Gap]:
    """Return a finder of line ends; the cursor is after the indent or one, two or three quarters of the text."""
    return _finder(seed, "line", _is_code, lambda lines, number: 1)


def block_gaps(seed: int) -> Finder[Gap]:
    """Return a finder of two to four lines inside a block; the cursor is in the first line, as in `line_gaps`."""
    return _finder(seed, "block", _begins_block, _block_lines)


def _finder(
    seed: int, kind: str, fits: Callable[[list[str], int], bool], length: Callable[[list[str], int], int]
) -> Finder[Gap]:
    """Return a finder of gaps that begin in a line that fits and have `length` lines."""

    def find(document: Document, turn: int) -> Gap | None:
        lines = document.text.split("\n")
        number = _first_fit(document, lines, _hash(seed, kind, document, turn), fits)
        if number is None:
            return None
        column = _column(lines[number], _hash(seed, f"{kind} column", document, turn))
        return _gap(document, lines, number, column, number + length(lines, number))

    return find


def task_gaps(tasks: Sequence[Task], seed: int) -> list[Gap]:
    """Return one whole line of each HumanEval solution, indent included, as in published single-line infilling."""
    gaps = []
    for task in tasks:
        lines = task.solution.split("\n")
        document = Document("humaneval", task.name, "python", task.solution)
        numbers = [number for number, line in enumerate(lines) if line.strip()]
        if not numbers:
            continue
        number = numbers[_hash(seed, "task", document, 0) % len(numbers)]
        before = task.prompt + "".join(line + "\n" for line in lines[:number])
        behind = "".join("\n" + line for line in lines[number + 1 :])
        gaps.append(Gap("humaneval", task.name, "python", before.count("\n") + 1, before, lines[number], behind))
    return gaps


def _hash(seed: int, kind: str, document: Document, turn: int) -> int:
    name = f"{seed}\0{kind}\0{document.package}\0{document.path}\0{turn}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def _first_fit(document: Document, lines: list[str], hashed: int, fits: Callable[[list[str], int], bool]) -> int | None:
    """Return the first line that fits and is not prose; the search starts at a hashed line and wraps around."""
    count = len(lines) - MIN_ABOVE
    numbers = (MIN_ABOVE + (hashed + step) % count for step in range(max(0, count)))
    return next((n for n in numbers if fits(lines, n) and not _is_prose(document, lines, n)), None)


def _is_code(lines: list[str], number: int) -> bool:
    body = lines[number].strip()
    return LINE_CHARS[0] <= len(body) <= LINE_CHARS[1] and not body.startswith(COMMENTS)


def _is_prose(document: Document, lines: list[str], number: int) -> bool:
    """Return whether a line is inside a docstring or a block comment, by counting their delimiters."""
    before = "\n".join(lines[:number])
    if document.language == "python":
        return before.count('"""') % 2 > 0 or before.count("'''") % 2 > 0
    return before.rfind("/*") > before.rfind("*/")


def _column(line: str, hashed: int) -> int:
    return _indent(line) + len(line.strip()) * (hashed % QUARTERS) // QUARTERS


def _begins_block(lines: list[str], number: int) -> bool:
    return _is_code(lines, number) and _indent(lines[number]) > 0 and _block_lines(lines, number) > 0


def _block_lines(lines: list[str], number: int) -> int:
    """Return the length of a short run of lines from `number` on, none shallower than it, or 0.

    The line after the run must not be deeper.
    """
    depth = _indent(lines[number])
    for count in BLOCK_LINES:
        block, following = lines[number : number + count], lines[number + count : number + count + 1]
        whole = len(block) == count and all(line.strip() and _indent(line) >= depth for line in block)
        if whole and len("\n".join(block)) <= BLOCK_CHARS and all(_indent(line) <= depth for line in following):
            return count
    return 0


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _gap(document: Document, lines: list[str], number: int, column: int, end: int) -> Gap:
    """Return the gap from a column of line `number` to the end of line `end - 1`."""
    before = "".join(line + "\n" for line in lines[:number]) + lines[number][:column]
    answer = "\n".join([lines[number][column:], *lines[number + 1 : end]])
    behind = "".join("\n" + line for line in lines[end:])
    return Gap(document.package, document.path, document.language, number + 1, before, answer, behind)


def infill_request(gap: Gap, shape: Shape) -> CompletionRequest:
    """Return the request of an editor whose cursor is at the gap, decoded greedily without speculation."""
    return CompletionRequest(
        prefix=gap.prefix,
        suffix=gap.suffix,
        path=gap.path,
        max_tokens=MAX_TOKENS[shape],
        shape=shape,
        heal=True,
        speculate=False,
    )


def is_exact(written: str, answer: str) -> bool:
    """Return whether a completion equals the file's own text, apart from trailing white space."""
    return written.rstrip() == answer.rstrip()


def begins_right(written: str, answer: str) -> bool:
    """Return whether the first line equals the file's own, apart from trailing white space."""
    return is_exact(written.partition("\n")[0], answer.partition("\n")[0])


def is_loop(text: bytes) -> bool:
    """Return whether some LOOP_BYTES bytes occur LOOP_TIMES times in the text without overlapping."""
    found: dict[bytes, tuple[int, int]] = {}  # piece → (count, end of the last occurrence)
    for start in range(len(text) - LOOP_BYTES + 1):
        piece = text[start : start + LOOP_BYTES]
        times, end = found.get(piece, (0, 0))
        if start >= end:
            if times + 1 == LOOP_TIMES:
                return True
            found[piece] = (times + 1, start + LOOP_BYTES)
    return False
