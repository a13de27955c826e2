"""`codespec bench policy` from the command line to tables and JSON, with tiny random models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from codespec_lab.bench import sites
from codespec_lab.bench.policy import scenario as run
from codespec_lab.bench.policy.scenario import Timed
from codespec_lab.corpus.documents import Document, write_documents

from codespec.store.machine import processor
from tests.cli.conftest import Command, Models, command, models, plain_environment
from tests.engine.test_planted_faults import correction_dropped

__all__ = ["command", "models", "plain_environment"]


@pytest.fixture
def held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two projects without this machine's library; measuring costs takes no time."""
    monkeypatch.setattr("codespec_lab.bench.steps.ALL_SECONDS", 0.0)
    monkeypatch.setattr("codespec_lab.bench.steps.SWEEP_SECONDS", 0.1)
    monkeypatch.setattr("codespec_lab.corpus.held_out.held_out_files", list)
    text = "".join(f"def area{i}(width):\n    result = width * {i}\n    return result\n\n\n" for i in range(20))
    documents = [Document(name, f"{name}.py", "python", text.replace("area", name)) for name in ("disc", "cube")]
    write_documents(tmp_path / "held_out.jsonl.gz", documents)
    return tmp_path / "held_out.jsonl.gz"


def test_the_whole_bench(held_out: Path, models: Models, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "new" / "policy.json"
    words = ["bench", "policy", *models.flags, "--held-out", held_out, "--limit", "2", "--max-tokens", "16"]
    done = command(*words, "--measure", "2", "--json", out)
    assert done.code == 0, done.err
    assert (
        all(f"modelled, batch {batch}:" in done.out for batch in (1, 8, 16))
        and "cost+syntax learned" in done.out
        and "by the clock" in done.out
    )
    assert "record [" in done.err and "replay [" in done.err
    found = json.loads(out.read_text(encoding="utf-8"))
    assert str(tmp_path) not in out.read_text(encoding="utf-8") and found["prompts"]["count"] == 2
    assert found["processor"] == processor().label and processor().label in done.out
    section = found["tables"]["own"]
    for batch, summary in section["batch"].items():
        policies = summary["policies"]
        assert {f"fixed:{n}" for n in range(1, 17)} < set(policies) and policies["off"]["drafted"] == 0
        for name, line in policies.items():
            assert line["ms_per_token"] > 0 and sum(line["lengths"]) == line["rounds"]
            assert policies["oracle"]["ms_per_token"] <= line["ms_per_token"] * 1.000001 or batch != "1", name
        assert policies[summary["best_fixed"]]["times_best_fixed"]["ratio"] == 1.0
        assert summary["first_rounds"].keys() == summary["speed"].keys()
        assert sum(found["prompts"]["tokens_by_class"].values()) == found["prompts"]["tokens"]
    assert all(line["rounds_as_replayed"] == 1.0 for line in section["measured"]["policies"].values())
    again = command(*words, "--measure", "0")
    assert again.code == 0 and "by the clock" not in again.out


def test_a_wrong_text_is_an_error(
    held_out: Path, models: Models, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rejected token is committed while policies are timed: figures are written; the error names policy and site."""
    measure, out = run.time_policies, tmp_path / "policy.json"

    def wrong(*given: Any) -> Timed:
        correction_dropped(monkeypatch)
        return measure(*given)

    monkeypatch.setattr(run, "time_policies", wrong)
    words = ["bench", "policy", *models.flags, "--held-out", held_out, "--limit", "1", "--max-tokens", "8"]
    done = command(*words, "--measure", "1", "--json", out)
    assert done.code == 1, done.err
    differing = json.loads(out.read_text(encoding="utf-8"))["tables"]["own"]["measured"]["differing"]
    message = done.err.splitlines()[-1]
    assert f"NOT EQUAL to plain: {differing[0]}" in done.out and f"({differing[0]}, own" in message
    assert message.startswith("codespec: A text differs from plain decoding, which exact mode rules out (")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--held-out", "none.gz"], "There is no corpus at none.gz"),
        (["--prompts", "none.jsonl"], "none.jsonl can't be read"),
        (["--prompts", "a", "--held-out", "b"], "name one of them"),
        (["--limit", "0"], "must be a whole number of 1 or more"),
        (["--measure", "few"], "must be a whole number of 0 or more"),
        (["--target", "./none", "--limit", "1"], "There is no model folder"),
        (["--warmup", "900", "--limit", "1"], "No place has enough text"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str],
    sentence: str,
    held_out: Path,
    models: Models,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sites, "HELD_OUT", held_out)
    done = command("bench", "policy", *models.flags, "--max-tokens", "4", *words)
    assert done.code == 2 and "Traceback" not in done.err, done.err
    assert sentence in done.err.splitlines()[-1] and done.err.splitlines()[-1].endswith(".")


def test_without_a_benchmark(command: Command) -> None:
    command("bench").check_mistake("BENCH", "--help")
