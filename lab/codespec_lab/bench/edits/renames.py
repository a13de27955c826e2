"""`python -m codespec_lab.bench.edits.renames OLD NEW [OLD NEW ...]`: other places of renames, compared with releases.

Each rename between two releases is made at the first row in which nothing else changed, nor in the rows beside it. The
rows at which the language server finds the same name are compared with the new release: right (the new name stands
there), wrong (the old one does), or gone (neither). Precision is right / (right + wrong), by language and kind, over
all renames and over those that the release made in several rows, with a bootstrap interval over packages.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from codespec_grammars.language import load_name_facts
from codespec_lsp.buffer import split_lines
from codespec_lsp.line_edits import Change, Hunk
from codespec_lsp.renames import Renamed, hunks_of, is_offered, renamed_name, tokens
from codespec_lsp.syntax import SyntaxTree

from codespec_lab.bench.edits.release_pairs import FilePair, release_pairs
from codespec_lab.bench.statistics import bootstrap


@dataclass(frozen=True, slots=True)
class Tried:
    """A rename made at its first row: the rows found for the others, and the rows that the release renamed."""

    package: str
    language: str
    kind: str
    offered: bool
    right: int
    wrong: int
    gone: int
    others: int


def renames(pair: FilePair) -> list[list[tuple[Change, Renamed]]]:
    """Return the rows of a file in which only a name changed, by what it became.

    The rows beside the first one are unchanged or renamed: else a statement was rewritten there, by more than a rename.
    """
    groups = defaultdict[tuple[str, str], list[tuple[Change, Renamed]]](list)
    alone = set[int]()
    for hunk in pair.hunks:
        rows = zip(_rows(hunk.old), _rows(hunk.new), strict=False)
        changes = [
            Change(pair.path, pair.path, pair.language, row, [old], [new])
            for row, (old, new) in enumerate(rows if _same_height(hunk) else (), hunk.start_row)
        ]
        names = [renamed_name(change) for change in changes]
        for index, (change, renamed) in enumerate(zip(changes, names, strict=True)):
            if renamed is not None:
                groups[renamed[:2]].append((change, renamed))
            if None not in names[max(0, index - 1) : index + 2]:
                alone.add(change.row)
    ordered = (sorted(group, key=lambda each: each[0].row not in alone) for group in groups.values())
    return [group for group in ordered if group[0][0].row in alone]


def try_renames(package: str, pair: FilePair) -> Iterator[Tried]:
    """Yield the renames of a file, each made at its first row."""
    lines = split_lines(pair.old)
    for (change, renamed), *others in renames(pair):
        text = [*lines[: change.row], *change.new, *lines[change.row + 1 :]]
        tree, starts = SyntaxTree(pair.language, "".join(text)), [0, *accumulate(map(len, text))]
        tree.parse()
        found = tree.same_name(*renamed[:2], [starts[change.row] + column for _, column in renamed.places])
        judged = list[str]()
        for hunk in hunks_of(text, dict.fromkeys(found.starts if found else (), renamed.new), renamed.old, change.row):
            judged.append(_judge(pair, hunk, renamed) if hunk.start_row != change.row else renamed.old)
        right, wrong, gone = (judged.count(answer) for answer in (renamed.new, renamed.old, ""))
        kind, offered = (found.kind, is_offered(change, found)) if found else ("", False)
        yield Tried(package, pair.language, kind, offered, right, wrong, gone, len(others))


def _judge(pair: FilePair, offered: Hunk, renamed: Renamed) -> str:
    """Return the name that stands in the new release where a row was, or "" if neither does."""
    row = offered.start_row
    hunk = next((each for each in pair.hunks if each.start_row <= row < each.end_row), None)
    if hunk is None:
        return renamed.old
    new = _rows(hunk.new)
    rows = [new[row - hunk.start_row]] if _same_height(hunk) else new
    there = Counter(word for each in rows for _, word in tokens(each))
    wanted = Counter(word for _, word in tokens(offered.new))
    if there[renamed.new] >= wanted[renamed.new] and there[renamed.old] <= wanted[renamed.old]:
        return renamed.new
    return renamed.old if there[renamed.old] else ""


def _rows(text: str) -> list[str]:
    rows = split_lines(text)
    return rows if rows[-1] else rows[:-1]


def _same_height(hunk: Hunk) -> bool:
    return len(_rows(hunk.new)) == hunk.end_row - hunk.start_row


def table(tried: Sequence[Tried]) -> Iterator[str]:
    """Yield the lines of the result."""
    groups = defaultdict[tuple[str, str], list[Tried]](list)
    for each in tried:
        if each.right + each.wrong + each.gone:
            groups[each.language, each.kind].append(each)
            groups["all, as offered" if each.offered else "all, not offered", each.kind].append(each)
    yield "language, kind: renames in packages; right, wrong, gone; precision; the same of several rows; their recall"
    for (language, kind), group in sorted(groups.items()):
        several = [each for each in group if each.others]
        right, wrong, gone = (sum(getattr(each, name) for each in group) for name in ("right", "wrong", "gone"))
        found = sum(min(each.right, each.others) for each in several)
        yield (
            f"{language}, {kind}: {len(group)} in {len({each.package for each in group})}; {right}, {wrong}, {gone}; "
            f"{_precision(group)}; {_precision(several)}; {found} of {sum(each.others for each in several)}"
        )


def _precision(tried: Sequence[Tried]) -> str:
    packages = defaultdict[str, list[Tried]](list)
    for each in tried:
        packages[each.package].append(each)

    def precision(drawn: Sequence[Sequence[Tried]]) -> float | None:
        right, wrong = (sum(getattr(each, name) for one in drawn for each in one) for name in ("right", "wrong"))
        return right / (right + wrong) if right + wrong else None

    share = precision(list(packages.values()))
    if share is None:
        return "none"
    low, high = bootstrap(list(packages.values()), precision)
    return f"{share:.3f} ({low:.2f} to {high:.2f})"


def main(archives: Sequence[str]) -> None:
    """Print the table for pairs of archives, then the recall over all renames in several rows."""
    tried = list[Tried]()
    for old, new in zip(archives[::2], archives[1::2], strict=True):
        for pair in release_pairs(Path(old), Path(new)):
            if load_name_facts(pair.language) is not None:
                tried += try_renames(Path(old).name, pair)
    print("\n".join(table(tried)))
    found = sum(min(each.right, each.others) for each in tried if each.offered)
    print(f"recall of what is offered: {found} of {sum(each.others for each in tried)} further rows")


if __name__ == "__main__":
    main(sys.argv[1:])
