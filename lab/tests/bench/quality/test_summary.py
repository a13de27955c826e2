"""Counts of correct completions, and intervals of differences."""

from __future__ import annotations

from codespec_lab.bench.quality.sites import GapSite
from codespec_lab.bench.quality.summary import Outcome, count_rows, differences
from codespec_lab.corpus.gaps import Gap

RIGHT, WRONG = Outcome(True, True, "passed"), Outcome(False, False, "wrong")
HALF = Outcome(False, True, "passed")
UNTESTED = Outcome(True, True)


def site(kind: str, row: str, path: str, line: int = 1) -> GapSite:
    return GapSite(kind, row, Gap("p", path, "python", line, "", "x", ""))


def tasks(count: int) -> list[GapSite]:
    return [site("single-line", "humaneval", f"T/{n}") for n in range(count)]


def test_counts_by_kind_and_row() -> None:
    sites = [*tasks(3), site("line", "go", "a"), site("line", "rust", "b"), site("line", "go", "c")]
    rows = count_rows(sites, [RIGHT, HALF, WRONG, UNTESTED, UNTESTED, Outcome(False, False)])
    assert rows["line"]["all"]["intervals"] == {"exact": [0.2077, 0.9385], "first_line": [0.2077, 0.9385]}
    assert set(rows["single-line"]["humaneval"]["intervals"]) == {"exact", "first_line", "passed"}
    for row in (row for kind in rows.values() for row in kind.values()):
        del row["intervals"]
    assert rows["single-line"] == {
        "humaneval": {"sites": 3, "exact": 1, "first_line": 2, "passed": 2, "ends": {"passed": 2, "wrong": 1}}
    }
    assert rows["line"] == {
        "go": {"sites": 2, "exact": 1, "first_line": 1},
        "rust": {"sites": 1, "exact": 1, "first_line": 1},
        "all": {"sites": 3, "exact": 2, "first_line": 2},
    }


def test_a_difference_counts_both_ways_once_a_site() -> None:
    """The row of all languages is not counted twice."""
    sites = [site("block", row, f"{n}") for n, row in enumerate(["go"] * 20 + ["rust"] * 20)]
    ours = [UNTESTED] * 25 + [Outcome(False, False)] * 15
    others = [UNTESTED] * 5 + [Outcome(False, True)] * 30 + [UNTESTED] * 5
    found = differences(sites, ours, others)
    assert set(found["block"]) == {"exact", "first_line"}, "no program was run"
    exact = found["block"]["exact"]
    assert (exact["only_target"], exact["only_other"], exact["share"]["value"]) == (20, 5, 0.375)
    assert 0 < exact["share"]["low"] < 0.375 < exact["share"]["high"] < 0.7
    first = found["block"]["first_line"]
    assert (first["only_target"], first["only_other"], first["share"]["value"]) == (0, 15, -0.375)


def test_characters_up_to_the_first_wrong_one() -> None:
    """Long answers count more; sites of one text are resampled together."""
    sites = tasks(3)
    ours = [Outcome(True, True, right=10, chars=10), Outcome(False, False, right=2, chars=30), UNTESTED]
    row = count_rows(sites, ours)["single-line"]["humaneval"]
    assert row["prefix"]["value"] == 0.3 and row["prefix"]["low"] <= 0.3 <= row["prefix"]["high"]
    others = [Outcome(False, False, right=0, chars=10), Outcome(False, False, right=6, chars=30), UNTESTED]
    found = differences(sites, ours, others)["single-line"]["prefix"]
    assert found["share"]["value"] == 0.15 and set(found) == {"share"}


def test_equal_targets_do_not_differ() -> None:
    found = differences(tasks(4), [RIGHT, WRONG, HALF, RIGHT], [RIGHT, WRONG, HALF, RIGHT])
    assert {values["share"]["value"] for values in found["single-line"].values()} == {0.0}
    assert set(found["single-line"]) == {"exact", "first_line", "passed"}
    assert found["single-line"]["passed"]["share"] == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_sites_of_one_text_are_resampled_together() -> None:
    """Four sites each in five texts are five samples, not twenty: the interval is wider."""
    ours = [RIGHT] * 8 + [WRONG] * 12
    others = [WRONG] * 20
    apart = differences(tasks(20), ours, others)["single-line"]["exact"]["share"]
    together = [site("single-line", "humaneval", f"T/{n // 4}", n) for n in range(20)]
    joined = differences(together, ours, others)["single-line"]["exact"]["share"]
    assert apart["value"] == joined["value"] == 0.4
    assert joined["high"] - joined["low"] > 1.5 * (apart["high"] - apart["low"])
