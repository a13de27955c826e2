"""`codespec bench quality` from flags to tables and JSON, with tiny random models and with answers from a script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from codespec_lab.bench.quality import scenario as run
from codespec_lab.bench.quality.scenario import engine_settings, labels, request_for
from codespec_lab.bench.quality.sites import GapSite
from codespec_lab.bench.settings import QualityBench
from codespec_lab.corpus import gaps
from codespec_lab.corpus.documents import Document, write_documents
from codespec_lab.corpus.gaps import Gap

from codespec.api.config import SHIPPED, EngineConfig
from codespec.store.machine import processor
from tests.cli.conftest import Command, Models, command, models, plain_environment

__all__ = ["command", "models", "plain_environment"]

SOLUTION = "    total = 0\n    for x in values:\n        total += x\n    return total\n"
TESTED = "def check(f):\n    assert f([1, 2]) == 3 and f([]) == 0\n"
SITE = GapSite("block", "go", Gap("p", "a.go", "go", 3, "func a() {\n", "\tx := 1\n\ty := 2", "\n}\n"))


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Three problems in HumanEval's format."""
    rows = [
        {
            "task_id": f"T/{n}",
            "prompt": f"def add{n}(values):\n",
            "canonical_solution": SOLUTION,
            "test": TESTED,
            "entry_point": f"add{n}",
        }
        for n in range(3)
    ]
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    """Held-out projects in two languages."""
    go = "".join(f"func Area{n}(w int) int {{\n\tx := w * {n}\n\treturn x\n}}\n\n" for n in range(30))
    python = "".join(f"def area_{n}(w):\n    x = w * {n}\n    y = x\n    return y\n\n\n" for n in range(30))
    file = tmp_path / "held_out.jsonl.gz"
    write_documents(file, [Document("q", "a.go", "go", go), Document("r", "b.py", "python", python)])
    return file


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all texts: random models never write an end token."""
    monkeypatch.setattr("codespec_lab.bench.quality.sites.MANY_TOKENS", 12)
    monkeypatch.setattr("codespec_lab.bench.quality.sites.TOKENS_OF_KIND", {})
    for shape in gaps.MAX_TOKENS:
        monkeypatch.setitem(gaps.MAX_TOKENS, shape, 12)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Models that write the answers except at the first sites; the list has the number of wrong sites by target."""
    wrong: list[int] = []
    chosen: list[GapSite] = []
    choose = run.choose_sites

    def remember(*given: Any, **named: Any) -> list[GapSite]:
        chosen[:] = choose(*given, **named)
        return list(chosen)

    def write(engine: object, requests: Sequence[object], advance: object) -> tuple[list[str], list[str]]:
        number = wrong.pop(0)
        assert len(requests) == len(chosen)
        answers = [site.gap.answer + (" " if site.gap.behind.startswith("\n") else "") for site in chosen]
        return ["zero()" if n < number else answer for n, answer in enumerate(answers)], ["a note"]

    monkeypatch.setattr(run, "choose_sites", remember)
    monkeypatch.setattr(run, "_write", write)
    monkeypatch.setattr(run, "GROUP", 1000)  # all sites at once
    return wrong


def pair(models: Models) -> list[str | Path]:
    return ["--target", models.target, "--drafter", "none", "--threads", "1"]


def test_two_targets_side_by_side(
    models: Models, command: Command, problems: Path, projects: Path, short: None, tmp_path: Path
) -> None:
    """With real engines, random models are never right, and the report is complete."""
    out = tmp_path / "new" / "quality.json"
    words = [*pair(models), "--compare", models.drafter, "--prompts", problems, "--held-out", projects, "--execute"]
    done = command("bench", "quality", *words, "--limit", "1", "--json", out)
    assert done.code == 0, done.err
    text = out.read_text(encoding="utf-8")
    found = json.loads(text)
    assert found["processor"] == processor().label and processor().label in done.out
    assert found["date"] == date.today().isoformat() and found["commit"] is not None
    assert set(found["data"]) == {"prompts", "projects", "stdlib"} and str(tmp_path) not in text
    assert found["command"].startswith("codespec bench quality --compare drafter --prompts problems.jsonl")
    assert "--execute" in found["command"] and "--target target" in found["command"]
    target, other = found["targets"]
    assert (target["name"], other["name"], target["sides"]) == ("target", "drafter", "psm")
    assert list(target["rows"]) == ["single-line", "multi-line", "random-span", "line", "block"]
    assert list(target["rows"]["line"]) == ["go", "python", "stdlib", "all"]
    assert target["rows"]["line"]["all"]["sites"] == 3 and target["rows"]["random-span"]["humaneval"]["exact"] == 0
    assert sum(target["rows"]["multi-line"]["humaneval"]["ends"].values()) == 1
    assert "passed" not in target["rows"]["line"]["go"]
    execution = found["execution"]
    assert execution["own_solutions"] == execution["own_solutions_passed"] == 1
    assert execution["network"] in ("cut", "open")
    assert "1 of 1 problems' own solutions pass" in done.out and "target against drafter" in done.out
    assert "both sides (prefix, suffix, middle)" in done.out and " passes\n" in done.out


def test_right_answers_are_counted_and_compared(
    models: Models, command: Command, problems: Path, script: list[int], tmp_path: Path
) -> None:
    script[:] = [0, 2]
    out = tmp_path / "quality.json"
    words = [*pair(models), "--compare", models.drafter, "--prompts", problems, "--execute", "--json", out]
    done = command("bench", "quality", *words, "--kinds", "random-span,single-line")
    assert done.code == 0, done.err
    found = json.loads(out.read_text(encoding="utf-8"))
    right, wrong = (target["rows"]["single-line"]["humaneval"] for target in found["targets"])
    assert (right["sites"], right["exact"], right["first_line"], right["passed"]) == (3, 3, 3, 3)
    assert right["ends"] == {"passed": 3} and (wrong["exact"], wrong["passed"]) == (1, 1)
    assert found["targets"][0]["rows"]["random-span"]["humaneval"]["passed"] == 3
    assert list(found["targets"][0]["rows"]) == ["single-line", "random-span"] and set(found["data"]) == {"prompts"}
    exact = found["differences"][0]["kinds"]["single-line"]["exact"]
    assert (exact["only_target"], exact["only_other"]) == (2, 0) and exact["share"]["value"] == 0.6667
    lines = done.out.splitlines()
    assert "target: a note" in lines and "  single-line, exact: +66.7 % [+0.0, +100.0]" in done.out
    first, second = (line.split() for line in lines if line.startswith("single-line"))
    right, half = ["3", "(100%,", "44–100)"], ["1", "(33%,", "6–79)"]
    assert first == ["single-line", "humaneval", "target", "3", *right, *right, "100%", "(100–100)", *right]
    assert second[:10] == ["single-line", "humaneval", "drafter", "3", *half, *half] and second[-3:] == half
    assert found["targets"][0]["rows"]["single-line"]["humaneval"]["prefix"]["value"] == 1.0
    prefix = found["differences"][0]["kinds"]["single-line"]["prefix"]
    assert 0 < prefix["share"]["value"] < 1 and f"characters: {100 * prefix['share']['value']:+.1f} %" in done.out


def test_figures_so_far_are_kept(
    models: Models, command: Command, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures are written after each group, at the deadline, and when the user interrupts the command."""
    groups: list[int] = []

    def write(engine: object, requests: Sequence[object], advance: object) -> tuple[list[str], list[str]]:
        groups.append(len(requests))
        if len(groups) == 3:
            raise KeyboardInterrupt
        return ["zero()"] * len(requests), []

    monkeypatch.setattr(run, "_write", write)
    monkeypatch.setattr(run, "GROUP", 1)
    out = tmp_path / "quality.json"
    words = [*pair(models), "--prompts", problems, "--kinds", "single-line", "--json", out]
    assert command("bench", "quality", *words).code == 130
    (target,) = json.loads(out.read_text(encoding="utf-8"))["targets"]
    assert target["rows"]["single-line"]["humaneval"]["sites"] == 2
    assert target["notes"][-1] == "stopped early: 2 of 3 sites are filled"
    groups.clear()
    monkeypatch.setattr(run.Deadline, "too_late", lambda deadline, seconds: bool(groups))
    done = command("bench", "quality", *words, "--compare", models.drafter, "--minutes", "1")
    assert done.code == 0 and "stopped early: 1 of 3 sites" in done.out and groups == [1], done.err
    assert [one["name"] for one in json.loads(out.read_text(encoding="utf-8"))["targets"]] == ["target"]


def test_without_tests_nothing_runs(
    models: Models, command: Command, projects: Path, script: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program runs without --execute, or at sites without tests."""
    monkeypatch.setattr(run.Executor, "run", lambda *_: pytest.fail("ran"))
    script[:] = [0]
    done = command("bench", "quality", *pair(models), "--held-out", projects, "--kinds", "line")
    assert done.code == 0 and "passes" not in done.out and "limits" not in done.out
    script[:] = [0]
    words = ["--held-out", projects, "--kinds", "line", "--limit", "1"]
    assert command("bench", "quality", *pair(models), *words).code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "./none"], "There is no model folder"),
        (["--compare", "./none"], "There is no model folder"),
        (["--compare", "TARGET"], "--compare names a target twice"),
        (["--prompts", "none.jsonl"], "none.jsonl can't be read"),
        (["--held-out", "none.gz"], "There is no corpus at none.gz"),
        (["--kinds", "multi-line"], "name its file by --prompts"),
        (["--execute"], "--execute runs HumanEval's tests"),
        (["--execute", "--prompts", "PROBLEMS", "--kinds", "line"], "--execute runs HumanEval's tests"),
        (["--execute", "--prompts", "UNTESTED"], "line 1: --execute needs `test` and `entry_point`"),
        (["--kinds", "lines"], "'lines' is not one of single-line, multi-line"),
        (["--limit", "0"], "must be a whole number of 1 or more"),
        (["--seed", "x"], "must be a whole number"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_measured(
    words: list[str], message: str, models: Models, command: Command, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.Engine, "build", lambda *_: pytest.fail("measured"))
    untested = problems.with_name("untested.jsonl")
    untested.write_text(json.dumps({"prompt": "def f():\n", "canonical_solution": SOLUTION}) + "\n")
    known = {"TARGET": models.target, "PROBLEMS": problems, "UNTESTED": untested}
    command("bench", "quality", *pair(models), *(known.get(word, word) for word in words)).check_mistake(message)


def test_requests_are_an_editors() -> None:
    bench = QualityBench(config=EngineConfig())
    request = request_for(bench, SITE)
    assert (request.shape, request.heal, request.language) == ("block", True, "go")
    assert (request.prefix, request.suffix, request.speculate) == ("func a() {\n", "\n}\n", False)
    left = request_for(replace(bench, left_only=True), SITE)
    assert left == replace(request, suffix="")


def test_texts_depend_on_no_clock_and_no_drafter() -> None:
    config = EngineConfig(dtype="bfloat16", threads=3, first_answer_ms=900)
    settings = engine_settings(config, "other")
    assert (settings.target, settings.drafter, settings.speculate, settings.learn) == ("other", "none", False, False)
    assert (settings.dtype, settings.threads, settings.first_answer_ms) == ("bfloat16", 3, 0)


def test_the_command_is_reported_without_folders_of_this_machine(
    models: Models, command: Command, projects: Path, script: list[int], tmp_path: Path
) -> None:
    script[:] = [0]
    out = tmp_path / "quality.json"
    words = ["--held-out", projects, "--kinds", "block,line", "--seed", "0", "--left-only", "--json", out]
    assert command("bench", "quality", *pair(models), *words).code == 0
    told = json.loads(out.read_text(encoding="utf-8"))["command"]
    assert told.startswith("codespec bench quality --held-out held_out.jsonl.gz --kinds line,block --seed 0 ")
    assert " --left-only " in told and " --target target --drafter none " in told and "/" not in told


def test_each_target_is_looked_for_in_its_own_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(run, "resolve", lambda name: SimpleNamespace(open=lambda dtype: asked.append((name, dtype))))
    config = EngineConfig(target="a/b", dtype="bfloat16")
    run._contestants(QualityBench(config=config, compare=["c/d"]))
    assert asked == [("a/b", "bfloat16"), ("c/d", "bfloat16")]
    asked.clear()
    run._contestants(QualityBench(config=config, compare=["c/d"], formats=["native"]))
    assert asked == [("a/b", "bfloat16"), ("a/b", "native"), ("c/d", "bfloat16")]


def test_labels_tell_targets_apart() -> None:
    assert labels(["a/b", "c/d"]) == ["b", "d"]
    assert labels(["/x/a/target", "/x/b/target", "hub/c"]) == ["a/target", "b/target", "hub/c"]
    assert labels([str(SHIPPED / "target"), "/x/target"]) == ["starter", "target"]
