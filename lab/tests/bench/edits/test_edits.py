"""`codespec bench edits`: the cases, the scores, and the report."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from codespec_lab.bench.edits.cases import Case, Made, apply, read_scenarios
from codespec_lab.bench.edits.release_pairs import hunks_between
from codespec_lab.bench.edits.release_places import NEAR, release_cases
from codespec_lab.bench.edits.score import chrf, delta_chrf, edits_of, score
from codespec_lab.bench.edits.summary import summarize
from codespec_lsp.line_edits import Hunk

ABOVE, BELOW = 2, 5  # lines of the smallest window around the row in focus
NOW = "def area(width, height):\n    return width * height\n\n\ndef twice(w):\n    return 2 * w\n"
MADE = Made(0, "def area(w, height):\n", "def area(width, height):\n")
CASE = Case("a", "scenario", "a.py", NOW, 4, (0, 14), (MADE,), tuple(hunks_between(NOW, NOW.replace("(w)", "(width)"))))


def window_of(case: Case) -> tuple[int, int]:
    return max(0, case.row - ABOVE), min(case.text.count("\n"), case.row + BELOW + 1)


def test_the_scenarios() -> None:
    cases = read_scenarios()
    silent = [case for case in cases if not case.wanted]
    assert len(cases) >= 25 and len(silent) >= 8 and len({case.name for case in cases}) == len(cases)
    assert {case.language for case in cases} == {"python", "typescript", "go", "rust", "cpp", "java"}
    assert {case.language for case in silent} == {case.language for case in cases}
    for case in cases:
        start, end = window_of(case)
        assert case.history and all(start <= hunk.start_row and hunk.end_row <= end for hunk in case.wanted), case.name
        assert case.cursor[1] <= len(case.text.split("\n")[case.cursor[0]]), case.name


@pytest.mark.parametrize("case", read_scenarios(), ids=lambda case: case.name)
def test_the_wanted_edit_of_a_scenario_is_perfect(case: Case) -> None:
    found = score(case, case.wanted, window_of(case))
    assert (found["silent"], found["shown"]) == (not case.wanted, bool(case.wanted))
    assert (found["delta"], found["exact"]) == ((100.0, 1.0) if case.wanted else (None, None))
    assert found["reverts"] == found["blank"] == found["markers"] == 0.0


def test_chrf_by_hand() -> None:
    assert chrf("abc", "abc") == chrf("", "") == 100.0 and chrf("", "x") == chrf("abc", "xyz") == 0.0
    # Orders 1, 2, 3 have 2 of 3, 1 of 2 and 0 of 1 n-grams in common; no text has longer ones.
    assert chrf("abd", "abc") == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)
    # β = 2: recall 1 and precision 1/2 of the single order that both have, and none of the second order's.
    assert chrf("ab", "a") == pytest.approx(100 * (5 * 0.5 / (4 * 0.5 + 1) + 0) / 2)
    assert chrf("a", "ab") < chrf("ab", "a"), "recall counts more"


def test_only_changed_lines_count() -> None:
    text = "".join(f"line {number}\n" for number in range(30))
    wanted = list(hunks_between(text, text.replace("line 15\n", "row 15\n")))
    other = list(hunks_between(text, text.replace("line 15\n", "row 51\n")))
    whole = edits_of(text, [(10, 20, "".join(split(text)[10:20]).replace("line 15\n", "row 15\n"))])
    assert whole == wanted and delta_chrf(whole, wanted) == 100.0
    assert delta_chrf(other, wanted) == chrf("row 51\n", "row 15\n") < 80.0


def split(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def test_a_deletion_is_right_or_wrong() -> None:
    wanted = [Hunk(1, 2, "b\n", "")]
    assert delta_chrf([Hunk(1, 2, "b\n", "")], wanted) == 100.0
    assert delta_chrf([Hunk(2, 3, "c\n", "")], wanted) == delta_chrf([Hunk(1, 2, "b\n", "x\n")], wanted) == 0.0


def scored(answer: Sequence[Hunk], case: Case = CASE) -> dict[str, Any]:
    return score(case, answer, (2, 6))


def test_nothing_shown() -> None:
    found = scored([])
    assert (found["delta"], found["exact"], found["shown"], found["silent"]) == (0.0, 0.0, False, False)
    silent = score(CASE, [], (0, 3))
    assert (silent["delta"], silent["exact"], silent["shown"], silent["silent"]) == (None, None, False, True)


def test_an_edit_that_the_window_cuts_is_not_judged() -> None:
    case = Case("cut", "release", "a.py", NOW, 4, (0, 0), (MADE,), (Hunk(4, 6, "".join(split(NOW)[4:]), "x\n"),))
    found = score(case, [], (2, 5))
    assert (found["silent"], found["delta"], found["exact"]) == (False, None, None)


def test_faults() -> None:
    assert scored([Hunk(0, 1, MADE.new, MADE.old)])["reverts"] == 1.0
    assert scored([Hunk(4, 5, "def twice(w):\n", "def twice(x):\n")])["reverts"] == 0.0
    assert scored([Hunk(3, 3, "", "\n\n")])["blank"] == scored([Hunk(2, 3, "\n", "")])["blank"] == 1.0
    assert scored([Hunk(4, 5, "def twice(w):\n", "def twice(w):  \n")])["blank"] == 1.0
    assert scored([Hunk(3, 3, "", "\nx = 1\n")])["blank"] == 0.0
    for mark in ("<|cursor|>", "<|im_end|>", "<[fim-middle]>", ">>>>>>> UPDATED", "=======", "```python", "NO_EDITS"):
        assert scored([Hunk(4, 5, "def twice(w):\n", f"{mark}\n")])["markers"] == 1.0, mark
    fenced = Case("b", "release", "a.rst", "```\nx\n```\n", 1, (0, 0), (MADE,), ())
    assert score(fenced, [Hunk(2, 2, "", "```\n")], (0, 3))["markers"] == 0.0, "the document has such lines"


def test_back_by_two_changes_is_a_revert() -> None:
    first, second = "a = 1\nb = 1\n", "a = 2\nb = 1\n"
    third = "a = 2\nb = 2\n"
    history = (Made(0, "a = 1\n", "a = 2\n"), Made(1, "b = 1\n", "b = 2\n"))
    case = Case("c", "scenario", "a.py", third, 0, (1, 5), history, ())
    assert score(case, list(hunks_between(third, first)), (0, 2))["reverts"] == 1.0
    assert score(case, list(hunks_between(third, second)), (0, 2))["reverts"] == 1.0
    assert score(case, [Hunk(0, 1, "a = 2\n", "a = 3\n")], (0, 2))["reverts"] == 0.0


OLD = "".join(f"name_{number} = {number}\n" for number in range(200))
CHANGED = (20, 24, 60, 64, 150)
NEW = "".join(line.replace("name_", "field_") if n in CHANGED else line for n, line in enumerate(split(OLD)))


@pytest.fixture
def archives(tmp_path: Path) -> list[tuple[Path, Path]]:
    """Two releases of a package with one changed file."""
    for version, text in (("1", OLD), ("2", NEW)):
        with zipfile.ZipFile(tmp_path / f"tiny-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tiny/names.py", text)
            wheel.writestr("tiny/same.py", "x = 1\n")
    old, new = sorted(tmp_path.glob("*.whl"))
    return [(old, new)]


def test_places_of_releases(archives: list[tuple[Path, Path]]) -> None:
    cases = release_cases(archives, 8, 11)
    assert cases == release_cases(archives, 8, 11)
    edits, controls = [case for case in cases if "control" not in case.name], [c for c in cases if "control" in c.name]
    assert {case.row for case in edits} == {24, 60, 64, 150} and {case.row for case in controls} <= {24, 64, 150}
    assert controls
    for case in cases:
        made = len(case.history)
        assert case.text == apply(OLD, [hunk for hunk in hunks_between(OLD, NEW)][:made])
        assert apply(case.text, case.wanted) == NEW
        assert [each.row for each in case.history] == list(CHANGED[:made])
        assert case.cursor == (CHANGED[made - 1], len(f"field_{CHANGED[made - 1]} = {CHANGED[made - 1]}"))
    assert all(score(case, [], window_of(case))["silent"] is False for case in edits)
    assert all(score(case, [], (max(0, case.row - NEAR), case.row + NEAR + 1))["silent"] for case in controls)


def row(**facts: Any) -> dict[str, Any]:
    times = {"first_ms": None, "total_ms": 100.0, "rounds": 4, "committed": 40}
    faults = {"reverts": 0.0, "blank": 0.0, "markers": 0.0}
    return {"kind": "scenario", "silent": False, "shown": True, "delta": 50.0, "exact": 0.0, **times, **faults, **facts}


def test_the_summary() -> None:
    quiet = {"silent": True, "delta": None, "exact": None}
    cut = {"delta": None, "exact": None}
    rows = [row(), row(delta=0.0, shown=False), row(**quiet), row(**quiet, shown=False), row(**cut, kind="release")]
    found = summarize(rows)
    every = found["all"]
    assert list(found) == ["scenario", "release", "all"]
    assert (every["cases"], every["wanted"], every["silent"]) == (5, 2, 2)
    assert [every[name]["ratio"] for name in ("delta", "exact", "shown", "quiet")] == [25.0, 0.0, 0.5, 0.5]
    assert every["edit_tokens_a_round"] == 10.0 and every["no_edit_ms"]["p50"] == 100.0
    assert found["release"]["delta"] is None is found["release"]["quiet"]
