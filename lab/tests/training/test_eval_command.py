"""`codespec train eval` from arguments to tables and JSON, with tiny random models."""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from codespec_lab.commands.train import add_train_arguments
from codespec_lab.corpus import gaps
from codespec_lab.corpus.documents import Document, write_documents
from codespec_lab.corpus.standard_library import held_out_files
from codespec_lab.training import command, scores

from codespec.errors import ModelError, TrainingError
from codespec.store.machine import processor
from tests.cli.conftest import write_model

HELD_OUT = "held_out.jsonl.gz"


def run(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    add_train_arguments(parser)
    return command.run_train(parser.parse_args([str(word) for word in words]))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    folder = tmp_path_factory.mktemp("pair")
    target, drafter = write_model(folder / "target", "gpt2", 0), write_model(folder / "drafter", "llama2", 1)
    return ["--target", target, "--drafter", drafter]


@pytest.fixture
def work(tmp_path: Path, documents: list[Document], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A work folder with two held-out languages; texts are kept short."""
    monkeypatch.setattr(scores, "DRAFTED_TOKENS", 12)
    monkeypatch.setattr(scores, "LOOP_TOKENS", 24)
    library = held_out_files()[:12]  # searching the whole standard library takes seconds
    monkeypatch.setattr("codespec_lab.corpus.held_out.held_out_files", lambda: library)
    for shape in gaps.MAX_TOKENS:
        monkeypatch.setitem(gaps.MAX_TOKENS, shape, 12)
    text = "".join(f"func Area{i}(w int) int {{\n\tx := w * {i}\n\treturn x\n}}\n\n" for i in range(30))
    projects = [Document("q", f"{name}.go", "go", text.replace("Area", name)) for name in ("Disc", "Cube")]
    projects += [Document("r", document.path, "python", document.text) for document in documents[:2]]
    write_documents(tmp_path / "work" / HELD_OUT, projects)
    return tmp_path / "work"


def counts(found: dict[str, Any]) -> list[int]:
    """Yield every count in a JSON value."""
    own = [found["count"]] if "count" in found else []
    return own + [count for value in found.values() if isinstance(value, dict) for count in counts(value)]


def test_two_pairs_are_measured_and_compared(
    work: Path, pair: list[str | Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "new" / "eval.json"
    prompts.write_text(json.dumps({"prompt": "def f():\n", "canonical_solution": "    return 1\n"}) + "\n")
    more = ["--limit", "1", "--json", out, "--prompts", prompts, "--compare", pair[1], pair[3]]
    assert run("--work", work, "eval", *pair, *more) == 0
    told = capsys.readouterr()
    assert "held-out files: go 2, python 2, stdlib" in told.out and "before [" in told.err and "after [" in told.err
    assert "not better in: bits per byte, infilling, acceptance; gaps filled exactly: 0 gained, 0 lost" in told.out
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["processor"] == processor().label and processor().label in told.out
    assert found["date"] == date.today().isoformat() and set(found["held_out"]) == {"stdlib", "projects", "prompts"}
    assert found["places"]["lines"] == {"go": 1, "python": 1, "stdlib": 1} and found["places"]["tasks"] == {
        "humaneval": 1
    }
    before, after = found["before"], found["after"]
    assert before.pop("ms_per_token").keys() == after.pop("ms_per_token").keys() == {"target", "drafter"}
    assert before == after
    assert set(after["line_exact"]) == {"go", "python", "stdlib", "all"} and min(counts(after)) == 1
    assert set(after["accepted_per_round"]) == {"2", "4", "8"} and "no fill-in-the-middle" not in str(after["notes"])
    assert str(Path(pair[1]).parent) not in out.read_text(encoding="utf-8")


def test_without_a_drafter_acceptance_is_left_out_and_that_is_reported(
    work: Path, pair: list[str | Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (work / HELD_OUT).unlink()
    assert run("--work", work, "eval", *pair[:3], "none", "--limit", "1") == 0
    told = capsys.readouterr().out
    assert "no drafter: acceptance was not measured" in told and "accepted of" not in told
    assert "no held-out projects: the held-out parts of the standard library only" in told


def test_completions_can_be_shown_instead(
    work: Path, pair: list[str | Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--work", work, "eval", *pair, "--show", "2") == 0
    told = capsys.readouterr().out
    assert told.count("⟨") == 2 and "bits/byte" not in told


@pytest.mark.parametrize(
    ("words", "error", "sentence"),
    [
        (["--target", "./none"], ModelError, "There is no model folder"),
        (["--drafter", "./none"], ModelError, "There is no model folder"),
        (["--compare", "./none", "./none"], ModelError, "There is no model folder"),
        (["--corpus-held", "none.gz"], TrainingError, "There is no corpus at none.gz"),
        (["--prompts", "none.jsonl"], TrainingError, "none.jsonl can't be read"),
        (["--show", "3"], TrainingError, "--show prints one pair's completions and measures nothing"),
    ],
)
def test_what_is_missing_is_one_sentence(
    words: list[str], error: type[Exception], sentence: str, work: Path, pair: list[str | Path]
) -> None:
    with pytest.raises(error, match=sentence):
        run("--work", work, "eval", *pair, "--limit", "1", *words)


def test_a_missing_pair_is_reported_before_the_other_is_measured(
    work: Path, pair: list[str | Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "evaluate_pair", lambda *given, **named: pytest.fail("measured"))
    with pytest.raises(ModelError, match="There is no model folder"):
        run("--work", work, "eval", "--target", "./none", "--compare", pair[1], pair[3])


@pytest.mark.parametrize("words", [["--limit", "0"], ["--show", "-1"], ["--limit", "few"], ["--compare", "one"]])
def test_bad_numbers_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("eval", *words)
    assert words[0] in capsys.readouterr().err
