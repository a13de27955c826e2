"""Score an answer against the edit that follows.

deltaChrF is the character n-gram F-score chrF (Popović 2015, orders 1 to 6, β = 2) of the changed lines, from 0 to 100,
as the benches of Zed and cursortab report it. Whatever an answer copies does not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from codespec_lsp.buffer import split_lines
from codespec_lsp.line_edits import Hunk

from codespec_lab.bench.edits.cases import Case, apply
from codespec_lab.bench.edits.release_pairs import hunks_between

ORDERS, BETA = range(1, 7), 2.0
MARKERS = re.compile(r"<\|[^|\s]*\|>|<\[[^]\s]*\]>|^(?:<{7} |={7}$|>{7} |`{3})|\bNO_EDITS\b", re.MULTILINE)


def chrf(text: str, reference: str) -> float:
    """Return chrF from 0 to 100: the mean F-score over the orders that either text has n-grams of."""
    scores = []
    for order in ORDERS:
        found, wanted = _grams(text, order), _grams(reference, order)
        if found or wanted:
            both = (found & wanted).total()
            weighted = BETA**2 * wanted.total() + found.total()
            scores.append((1 + BETA**2) * both / weighted)
    return 100 * sum(scores) / len(scores) if scores else 100.0


def score(case: Case, answer: Sequence[Hunk], window: tuple[int, int]) -> dict[str, Any]:
    """Return the scores of an answer, whose hunks lie in the rows of the window.

    silent    whether nothing should change in the window; then `delta` and `exact` are None
    shown     whether the answer changes anything
    delta     deltaChrF; 0 if nothing is shown
    exact     whether the window becomes what it should
    reverts   whether the answer leads back to an earlier state
    blank     whether it changes blank lines or white space at line ends only
    markers   whether it shows control tokens, fences or sentinels that the document doesn't hold
    """
    start, end = window
    wanted = [hunk for hunk in case.wanted if start <= hunk.start_row and hunk.end_row <= end]
    partly = any(hunk.start_row < end and hunk.end_row > start for hunk in case.wanted)
    found: dict[str, Any] = {"silent": not wanted and not partly, "shown": bool(answer), "delta": None, "exact": None}
    if wanted:
        found["delta"] = delta_chrf(answer, wanted) if answer else 0.0
        found["exact"] = float(apply(case.text, answer) == apply(case.text, wanted))
    added = "".join(hunk.new for hunk in answer)
    return found | {
        "reverts": float(bool(answer) and _reverts(case, answer)),
        "blank": float(bool(answer) and all(_words(hunk.old) == _words(hunk.new) for hunk in answer)),
        "markers": float(any(mark[0] not in case.text for mark in MARKERS.finditer(added))),
    }


def delta_chrf(answer: Sequence[Hunk], wanted: Sequence[Hunk]) -> float:
    """Return chrF of the lines that an answer adds; if only lines should go, 100 if exactly these go."""
    (gone, added), (all_gone, all_added) = _lines_of(answer), _lines_of(wanted)
    if not all_added:
        return 100.0 * (gone == all_gone and not added)
    return chrf(added, all_added)


def edits_of(text: str, hunks: Sequence[tuple[int, int, str]]) -> list[Hunk]:
    """Return streamed edits (start row, end row, text) as hunks, without the lines that they keep."""
    lines, found = split_lines(text), list[Hunk]()
    for start, end, new in hunks:
        for hunk in hunks_between("".join(lines[start:end]), new):
            found.append(hunk._replace(start_row=hunk.start_row + start, end_row=hunk.end_row + start))
    return found


def _lines_of(hunks: Sequence[Hunk]) -> tuple[str, str]:
    """Return the removed and the added lines."""
    return "".join(hunk.old for hunk in hunks), "".join(hunk.new for hunk in hunks)


def _grams(text: str, order: int) -> Counter[str]:
    return Counter(text[at : at + order] for at in range(len(text) - order + 1))


def _words(text: str) -> list[str]:
    """Return the lines that aren't blank, without white space at their ends."""
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def _reverts(case: Case, answer: Sequence[Hunk]) -> bool:
    after = apply(case.text, answer)
    if any(after == earlier for earlier in _earlier(case)):
        return True
    undone = {(made.new.strip(), made.old.strip()) for made in case.history}
    return any((hunk.old.strip(), hunk.new.strip()) in undone for hunk in answer)


def _earlier(case: Case) -> Iterator[str]:
    """Yield the document before the latest change, before the one before it, and so on."""
    text = case.text
    for made in reversed(case.history):
        end = made.row + len(split_lines(made.new)) - 1
        if "".join(split_lines(text)[made.row : end]) != made.new:
            return
        text = apply(text, [Hunk(made.row, end, made.new, made.old)])
        yield text
