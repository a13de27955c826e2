"""Find, without a model, the other places of a name that the user renamed.

Other substitutions are not repeated, even if they were made twice: between releases of packages, the text that both had
in common was changed alike at 68 % of its other places, at 80 % with four words in common (lab/LOG.md).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from codespec_lsp.buffer import split_lines
from codespec_lsp.edit_types import Change, Hunk
from codespec_lsp.name_scopes import SameName

MAX_ROWS = 8  # of a change
MAX_LINE = 500  # characters; longer lines are data
MAX_PLACES = 200  # offered at once; more are not a rename that a user looks through
MAX_CHANGES = 16  # the latest changes of the ring that are compared
_TOKEN = re.compile(r"[\w$]+|\s+|[^\w\s$]")
_NAME = re.compile(r"[^\W\d][\w$]*|\$[\w$]+")


class Renamed(NamedTuple):
    """A name that a change turned into another. `places` are the rows, from the change's first, and columns."""

    old: str
    new: str
    places: Sequence[tuple[int, int]]


AskNames = Callable[[str, str, Sequence[int]], Awaitable[SameName | None]]  # old and new name, offsets of the new one


async def find_repeats(changes: Sequence[Change], text_lines: Sequence[str], ask: AskNames) -> Sequence[Hunk]:
    """Return the other places of the name that the last of `changes` renamed, those after it first.

    `changes` are the document's, oldest first, `text_lines` its text, with line ends.
    """
    change = merge_last(changes[-MAX_CHANGES:])
    if change is None or text_lines[change.row : change.row + _height(change.new)] != split_rows(change.new):
        return ()
    renamed, earlier = renamed_name(change), changes[-MAX_CHANGES:-1]
    if renamed is None or any((other := renamed_name(each)) and other[1::-1] == renamed[:2] for each in earlier):
        return ()  # no rename, or the user takes one back
    return await _same_names(renamed, change, earlier, text_lines, ask)


def merge_last(changes: Sequence[Change]) -> Change | None:
    """Return the last change, merged with those before it that led to its old text; None if they cancel out."""
    if not changes:
        return None
    merged = changes[-1]
    for earlier in reversed(changes[:-1]):
        if (earlier.uri, earlier.row, earlier.new) != (merged.uri, merged.row, merged.old):
            break
        merged = Change(
            *(merged.uri, merged.path, merged.language, merged.row, earlier.old, merged.new, merged.time),
            *(earlier.before, merged.after, merged.predicted),
        )
    return merged if merged.old != merged.new else None


def renamed_name(change: Change) -> Renamed | None:
    """Return the rename that a change is: one name became another, everywhere in its rows, and nothing else changed."""
    old_rows, new_rows = split_rows(change.old), split_rows(change.new)
    if len(old_rows) != len(new_rows) or len(old_rows) > MAX_ROWS:
        return None
    pairs, places = set[tuple[str, str]](), list[tuple[int, int]]()
    for row, (old, new) in enumerate(zip(old_rows, new_rows, strict=True)):
        if old == new:
            continue
        before, after = tokens(old), tokens(new)
        if len(before) != len(after) or max(len(old), len(new)) > MAX_LINE:
            return None
        for (_, token), (column, other) in zip(before, after, strict=True):
            if token != other:
                pairs.add((token, other))
                places.append((row, column))
    if len(pairs) != 1:
        return None
    ((old, new),) = pairs
    are_names = _NAME.fullmatch(old) and _NAME.fullmatch(new)
    return Renamed(old, new, places) if are_names and not means_another_value(old, new) else None


def means_another_value(old: str, new: str) -> bool:
    """Return whether a new name says that the value is another one: unused (`_` or `_old`), or several instead of one.

    The other places then stay or become other expressions (lab/LOG.md).
    """
    one, several = sorted((old, new), key=len)
    return new.lstrip("_") in ("", old) or (several == f"{one}s" and not one.endswith("s"))


async def _same_names(
    renamed: Renamed, change: Change, earlier: Sequence[Change], lines: Sequence[str], ask: AskNames
) -> list[Hunk]:
    starts = [0, *accumulate(map(len, lines))]
    places = [starts[change.row + row] + column for row, column in renamed.places]
    rows = {row: columns for each in earlier for row, columns in _renamed_rows(each, renamed)}
    for row, line in enumerate(lines):
        if line in rows and not change.row <= row < change.row + _height(change.new):
            places += [starts[row] + column for column in rows[line]]
    names = await ask(renamed.old, renamed.new, places)
    if names is None or len(names.starts) > MAX_PLACES or not is_offered(change, names):
        return []
    texts = dict.fromkeys(names.starts, renamed.new)
    texts |= dict.fromkeys(names.shorthands, f"{renamed.old}: {renamed.new}")
    return hunks_of(lines, texts, renamed.old, change.row)


def _renamed_rows(change: Change, renamed: Renamed) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield the rows that an earlier change made by the same rename, with the new name's columns."""
    other = renamed_name(change)
    if other is not None and other[:2] == renamed[:2]:
        for index, row in enumerate(split_rows(change.new)):
            columns = [column for place, column in other.places if place == index]
            if columns:
                yield row, columns


def hunks_of(lines: Sequence[str], texts: Mapping[int, str], old: str, row: int) -> list[Hunk]:
    """Return hunks of one row each that replace `old` at code point offsets by the texts, those after `row` first."""
    starts = [0, *accumulate(map(len, lines))]
    changed: dict[int, str] = {}
    for offset in sorted(texts, reverse=True):
        at = bisect_right(starts, offset) - 1
        line, column = changed.get(at, lines[at]), offset - starts[at]
        changed[at] = line[:column] + texts[offset] + line[column + len(old) :]
    return [Hunk(at, at + 1, lines[at], changed[at]) for at in sorted(changed, key=lambda place: (place < row, place))]


def is_offered(change: Change, names: SameName) -> bool:
    """Return whether renames of that kind are right at 90 % of their places, between releases of packages (lab/LOG.md).

    In Python, a third of the places are gone after a changed import, which often is another one, and a class that is
    renamed often is a new base of the old one.
    """
    is_class = change.new.lstrip().startswith("class ")
    return change.language != "python" or not (is_class or names.kind == "import")


def split_rows(text: str) -> list[str]:
    """Split whole lines, which keep their ends."""
    rows = split_lines(text)
    return rows if rows[-1] else rows[:-1]


def _height(text: str) -> int:
    return len(split_rows(text))


def tokens(line: str) -> list[tuple[int, str]]:
    """Return the words and signs of a line with their columns."""
    return [(match.start(), match[0]) for match in _TOKEN.finditer(line) if not match[0].isspace()]
