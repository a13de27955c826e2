"""Cases from two releases of a package: after the earlier hunks of a file, the next one is expected where it begins.

Controls expect silence: the place of the latest hunk, when no other hunk is near. How a file went from one release to
the next is unknown, so its hunks are taken from top to bottom. Nothing else tells which hunk a person could foresee;
most can't be, so the figures compare models and don't say how often a user accepts.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path

from codespec_lsp.line_edits import Hunk

from codespec_lab.bench.edits.cases import MAX_HISTORY, Case, Made, apply, end_of
from codespec_lab.bench.edits.release_pairs import FilePair, release_pairs

MAX_OLD, MAX_NEW = 4, 8  # lines of an expected hunk; the smallest windows have five lines from the row in focus on
MAX_MADE = 40  # lines of a hunk that the history shows
NEAR = 12  # rows: more than the largest window has on each side
PER_FILE = 4  # cases
SILENT = 4  # one of this many cases is a control
MAX_TEXT = 200_000  # characters of a file


def release_cases(archives: Sequence[tuple[Path, Path]], count: int, seed: int) -> list[Case]:
    """Return up to `count` cases of pairs of releases, the files in turn. Raises TrainingError for an archive."""
    pairs = (pair for old, new in archives for pair in release_pairs(old, new))
    files = [pair for pair in pairs if len(pair.old) <= MAX_TEXT and "\r" not in pair.old + pair.new]
    random.Random(seed).shuffle(files)
    controls = count // SILENT
    wanted = _in_turn((_edits(pair, seed) for pair in files), count - controls)
    silent = _in_turn((_silent(pair, seed) for pair in files), controls)
    return [*wanted, *silent]


def _in_turn(rows: Iterable[Iterator[Case]], count: int) -> list[Case]:
    turns = zip_longest(*(islice(row, PER_FILE) for row in rows))
    return list(islice((case for turn in turns for case in turn if case is not None), count))


def _edits(pair: FilePair, seed: int) -> Iterator[Case]:
    """Yield the cases in which the next hunk is small enough, in the seed's order."""
    numbers = [number for number in range(1, len(pair.hunks)) if _is_expected(pair.hunks[number])]
    for number in random.Random(f"{seed} {pair.path}").sample(numbers, len(numbers)):
        case = _after(pair, number)
        if case is not None:
            yield case


def _silent(pair: FilePair, seed: int) -> Iterator[Case]:
    """Yield the cases at the place of the latest hunk in which the next one is far, in the seed's order."""
    numbers = range(1, len(pair.hunks) + 1)
    for number in random.Random(f"{seed} {pair.path}").sample(numbers, len(numbers)):
        case = _after(pair, number, control=True)
        if case is not None:
            yield case


def _after(pair: FilePair, number: int, control: bool = False) -> Case | None:
    """Return the case after the first hunks of a file; None if the history would be empty or a control isn't one."""
    made, shift = list[Made](), 0
    for hunk in pair.hunks[:number]:
        if _lines(hunk.old) + _lines(hunk.new) <= MAX_MADE:
            made.append(Made(hunk.start_row + shift, hunk.old, hunk.new))
        shift += _lines(hunk.new) - _lines(hunk.old)
    if not made or made[-1][1:] != (pair.hunks[number - 1].old, pair.hunks[number - 1].new):
        return None
    rest = pair.hunks[number:]
    left = tuple(hunk._replace(start_row=hunk.start_row + shift, end_row=hunk.end_row + shift) for hunk in rest)
    text = apply(pair.old, pair.hunks[:number])
    cursor = end_of(made[-1])
    row = cursor[0] if control else left[0].start_row
    if row >= _lines(text):
        return None
    if control and any(hunk.start_row <= row + NEAR and hunk.end_row >= row - NEAR for hunk in left):
        return None
    name = f"{pair.path}:{row + 1}" + (" (control)" if control else "")
    return Case(name, "release", pair.path, text, row, cursor, tuple(made[-MAX_HISTORY:]), left)


def _is_expected(hunk: Hunk) -> bool:
    """Return whether a hunk fits in every window and changes more than white space."""
    small = _lines(hunk.old) <= MAX_OLD and _lines(hunk.new) <= MAX_NEW
    return small and hunk.old.split() != hunk.new.split()


def _lines(text: str) -> int:
    return text.count("\n")
