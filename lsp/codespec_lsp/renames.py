"""Find the other occurrences of a name that the user renamed, without using a model.

Occurrences are found as text; `name_scopes` then finds out which of them refer to the same name.

Other substitutions are not suggested, even if the user made one twice: between releases of packages, only 68 % of the
other occurrences of a changed text were changed alike, or 80 % for a text of four words (lab/LOG.md).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from codespec_lsp.line_edits import Change, Hunk
from codespec_lsp.name_scopes import SameName

MAX_ROWS = 8  # in a change that can be a rename
MAX_LINE = 500  # characters; longer lines are data
MAX_PLACES = 200  # in one suggestion; users do not review longer ones
_TOKEN = re.compile(r"[\w$]+|\s+|[^\w\s$]")
_NAME = re.compile(r"[^\W\d][\w$]*|\$[\w$]+")


class Renamed(NamedTuple):
    """A rename of the name `old` to `new`. `places` are (row, column) pairs, with row 0 at the change's first row."""

    old: str
    new: str
    places: Sequence[tuple[int, int]]


# Looks up a name in the tree, given its old and new spelling and the offsets of the new one.
AskNames = Callable[[str, str, Sequence[int]], Awaitable[SameName | None]]


async def find_repeats(changes: Sequence[Change], lines: list[str], ask: AskNames) -> Sequence[Hunk]:
    """Return hunks that repeat the rename made by the last of a document's changes, hunks below that change first."""
    change, earlier = merge_last(changes), changes[:-1]
    renamed = renamed_name(change) if change is not None and lines[change.row : change.end] == change.new else None
    if change is None or renamed is None:
        return ()
    starts = [0, *accumulate(map(len, lines))]
    places = [starts[change.row + row] + column for row, column in renamed.places]
    rows: dict[str, list[int]] = {}  # columns of the name in rows that an earlier change made by the same rename
    for each in earlier:
        other = renamed_name(each)
        if other is not None and other[1::-1] == renamed[:2]:
            return ()  # the user undoes a rename
        if other is not None and other[:2] == renamed[:2]:
            rows |= {each.new[row]: [column for at, column in other.places if at == row] for row, _ in other.places}
    for row, line in enumerate(lines):
        if not change.row <= row < change.end:
            places += [starts[row] + column for column in rows.get(line, ())]
    names = await ask(renamed.old, renamed.new, places)
    if names is None or len(names.starts) > MAX_PLACES or not is_offered(change, names):
        return ()
    texts = dict.fromkeys(names.starts, renamed.new)
    texts |= dict.fromkeys(names.shorthands, f"{renamed.old}: {renamed.new}")
    return hunks_of(lines, texts, renamed.old, change.row)


def merge_last(changes: Sequence[Change]) -> Change | None:
    """Merge the last change with earlier changes of the same lines. Return None if the changes cancel out."""
    if not changes:
        return None
    merged = changes[-1]
    for earlier in reversed(changes[:-1]):
        if (earlier.uri, earlier.row, earlier.new) != (merged.uri, merged.row, merged.old):
            break
        merged = replace(merged, old=earlier.old)
    return merged if merged.old != merged.new else None


def renamed_name(change: Change) -> Renamed | None:
    """Return the rename that a change made, or None if the change did more than replace one name with another."""
    if len(change.old) != len(change.new) or len(change.old) > MAX_ROWS:
        return None
    pairs, places = set[tuple[str, str]](), list[tuple[int, int]]()
    for row, (old, new) in enumerate(zip(change.old, change.new, strict=True)):
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
    """Return whether a rename marks a value as unused or plural; other occurrences then keep the name (lab/LOG.md)."""
    one, several = sorted((old, new), key=len)
    return new.lstrip("_") in ("", old) or (several == f"{one}s" and not one.endswith("s"))


def hunks_of(lines: Sequence[str], texts: Mapping[int, str], old: str, row: int) -> list[Hunk]:
    """Return one-row hunks that replace `old` at each offset with `texts[offset]`: first the hunks below `row`."""
    starts = [0, *accumulate(map(len, lines))]
    changed: dict[int, str] = {}
    for offset in sorted(texts, reverse=True):
        at = bisect_right(starts, offset) - 1
        line, column = changed.get(at, lines[at]), offset - starts[at]
        changed[at] = line[:column] + texts[offset] + line[column + len(old) :]
    return [Hunk(at, at + 1, lines[at], changed[at]) for at in sorted(changed, key=lambda place: (place < row, place))]


def is_offered(change: Change, names: SameName) -> bool:
    """Return whether a rename is of a kind whose suggestions are right at 90 % of the places (lab/LOG.md).

    In Python, a changed import often means another module, and a renamed class often becomes a base of the old class.
    """
    is_class = "".join(change.new).lstrip().startswith("class ")
    return change.language != "python" or not (is_class or names.kind == "import")


def tokens(line: str) -> list[tuple[int, str]]:
    """Return the column and text of each word and each other character of a line, except white space."""
    return [(match.start(), match[0]) for match in _TOKEN.finditer(line) if not match[0].isspace()]
