"""A release's renames, made at their first rows, are judged by the new release."""

from __future__ import annotations

import pytest
from codespec_lab.bench.edits.release_pairs import FilePair, hunks_between
from codespec_lab.bench.edits.renames import Tried, table, try_renames

OLD = "def f(w):\n    a = w\n    b = w + 1\n    return w\n"


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ("def f(x):\n    a = x\n    b = x + 1\n    return x\n", (3, 0, 0, 3)),
        ("def f(x):\n    a = w\n    b = x + 1\n    return x\n", (2, 1, 0, 2)),
        ("def f(x):\n    a = x\n    b = 1\n    return x\n", (2, 0, 1, 2)),
        ("def f(x):\n    return x\n", None),  # no row is only a rename
    ],
)
def test_rows_are_right_wrong_or_gone(new: str, expected: tuple[int, ...] | None) -> None:
    pair = FilePair("a.py", "python", OLD, new, tuple(hunks_between(OLD, new)))
    kind = ("box-1.whl", "python", "local", True)
    assert list(try_renames("box-1.whl", pair)) == ([Tried(*kind, *expected)] if expected else [])


def test_the_table_has_precision_by_kind() -> None:
    tried = [Tried("a", "python", "local", True, 9, 1, 2, 3), Tried("b", "python", "", False, 0, 0, 0, 1)]
    lines = list(table(tried))
    assert "python, local: 1 in 1; 9, 1, 2; 0.900 (0.90 to 0.90); 0.900 (0.90 to 0.90); 3 of 3" in lines
