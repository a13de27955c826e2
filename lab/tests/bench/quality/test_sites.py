"""Sites to fill in are chosen by rule, the same every time, each with its true answer."""

from __future__ import annotations

import pytest
from codespec_lab.bench.quality.sites import (
    MIN_SPAN,
    MULTI_LINES,
    GapSite,
    choose_sites,
    multi_line_gaps,
    span_gaps,
)
from codespec_lab.bench.settings import KINDS, SEED, gap_kinds
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.gaps import Gap, task_gaps
from codespec_lab.corpus.held_out import HeldOut, Task
from codespec_lab.training.evaluation import choose_eval_set
from hypothesis import given
from hypothesis import strategies as st

from codespec.errors import ConfigError

BODY = "    total = 0\n    for x in values:\n        if x > 0:\n            total += x\n\n    return total\n"
TASKS = tuple(Task(f"T/{n}", f"def f{n}(values):\n", BODY) for n in range(12))
LINES = st.lists(st.sampled_from(["", "    x = f(1)", "        return x", "    y"]), max_size=12)


def code(count: int) -> list[Document]:
    text = "".join(f"def area_{n}(w):\n    x = w * {n}\n    y = x + 1\n    return y\n\n\n" for n in range(20))
    return [Document("p", f"{n}.py", "python", text.replace("area", f"area{n}")) for n in range(count)]


@given(LINES.map(lambda lines: "\n".join(lines) + "\n"), st.integers(0, 5))
def test_a_gap_is_cut_out_of_its_solution(solution: str, seed: int) -> None:
    task = Task("T", "def f():\n", solution)
    for find in (multi_line_gaps, span_gaps):
        for gap in find([task], seed):
            assert gap.before + gap.answer + gap.behind == task.prompt + solution
            assert gap.before.startswith(task.prompt) and gap.line == gap.before.count("\n") + 1
            assert gap.answer == gap.answer.rstrip() and gap.answer.strip()
            assert find([task], seed) == [gap]
    for gap in multi_line_gaps([task], seed):
        assert gap.answer.count("\n") + 1 in MULTI_LINES and gap.answer[0] != " "
        assert not gap.before.rpartition("\n")[2].strip() and gap.behind[:1] in ("", "\n")
    for gap in span_gaps([task], seed):
        assert len("".join(gap.answer.split())) >= MIN_SPAN


def test_every_solution_long_enough_has_a_site() -> None:
    short = [Task("S", "def f():\n", "    return 1\n"), Task("E", "def f():\n", "\n")]
    assert len(multi_line_gaps(TASKS, 0)) == len(TASKS) and not multi_line_gaps(short, 0)
    assert len(span_gaps(TASKS, 0)) == len(TASKS) and len(span_gaps(short, 0)) == 1


def test_the_seed_moves_sites_and_problems_have_different_ones() -> None:
    for find in (multi_line_gaps, span_gaps):
        assert find(TASKS, 0) != find(TASKS, 1)
        assert len({(gap.before.count("\n"), gap.answer) for gap in find(TASKS, 0)}) > 3


def test_single_lines_and_projects_are_those_of_train_eval() -> None:
    """The figures of both commands can be compared."""
    held_out = HeldOut({"python": code(3), "stdlib": code(1)}, TASKS)
    eval_set = choose_eval_set(held_out, seed=SEED, limit=2)
    sites = choose_sites(held_out, KINDS, limit=2)
    by_kind: dict[str, list[Gap]] = {}
    for site in sites:
        by_kind.setdefault(site.kind, []).append(site.gap)
    assert list(by_kind) == list(KINDS)
    assert by_kind["single-line"] == eval_set.tasks["humaneval"] == task_gaps(TASKS[:2], SEED)
    assert by_kind["line"] == [gap for gaps in eval_set.lines.values() for gap in gaps]
    assert by_kind["block"] == [gap for gaps in eval_set.blocks.values() for gap in gaps]
    assert {site.row for site in sites} == {"humaneval", "python", "stdlib"}


def test_a_kind_without_a_site_is_one_sentence() -> None:
    held_out = HeldOut({"python": [Document("p", "a.py", "python", "x = 1\n")]}, (Task("S", "def f():\n", "  1\n"),))
    for kind in ("multi-line", "random-span", "line"):
        with pytest.raises(ConfigError, match=rf"^The texts hold no site of the kind {kind}: .*\.$"):
            choose_sites(held_out, [kind])


def test_shapes_and_lengths_follow_the_kind() -> None:
    def site(kind: str, answer: str) -> GapSite:
        return GapSite(kind, "r", Gap("p", "a.py", "python", 1, "a\n", answer, "\nb"))

    assert (site("line", "x").shape, site("block", "x\ny").shape) == ("line", "block")
    assert site("random-span", "x").shape == "line" and site("random-span", "x\ny").shape == "block"
    assert site("line", "x").tokens == site("single-line", "x").tokens < site("block", "x\ny").tokens
    assert site("block", "x\ny").tokens < site("multi-line", "x\ny").tokens


def test_kinds_come_in_the_reports_order() -> None:
    assert gap_kinds("line,single-line") == ("single-line", "line")
