"""`codespec stats` shows what engines kept, and forgets it when told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from codespec.control.learned import Learned
from codespec.control.survival import Survival
from tests.cli.conftest import Command, Models


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "state" / "codespec" / "learned"


def test_shows_and_forgets(command: Command) -> None:
    assert command("stats").out == "nothing was learned yet\n"
    survival = Survival()
    for _ in range(50):
        survival.learn("suffix", ("comment", "python"), 0.0, [0.9], 1)
    Learned("some-pair", []).save(survival)
    table = command("stats").out.splitlines()
    assert table[0] == "pair some-pair" and len(table) == 5
    assert [line.split()[:3] for line in table[2:]] == [
        ["suffix", "any", "any"],
        ["suffix", "comment", "any"],
        ["suffix", "comment", "python"],
    ]
    rows = json.loads(command("stats", "--json").out)["learned"]
    assert rows[2]["judged"] > 40 and rows[2]["chance"] > 0.8
    assert command("stats", "--reset").out == "forgotten: 1 pair(s)\n"
    assert json.loads(command("stats", "--reset", "--json").out) == {"forgotten": 0}
    assert command("stats").out == "nothing was learned yet\n"


def test_a_completion_learns_unless_told_otherwise(
    command: Command, models: Models, source: Path, folder: Path
) -> None:
    words = ["complete", f"{source}:11:8", *models.flags, "--policy", "cost", "--max-tokens", "12", "--shape", "raw"]
    assert command(*words, "--no-learn").code == 0 and not folder.exists()
    done = command(*words)
    assert (done.code, done.err) == (0, "") and len(list(folder.iterdir())) == 1
    assert command("stats").out.startswith("pair ")


def test_a_broken_file_is_said(command: Command, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "x.json").write_text("{")
    done = command("stats")
    assert done.code == 0 and "can't be read" in done.err and done.err.count("\n") == 1
