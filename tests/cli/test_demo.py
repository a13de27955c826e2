"""`make demo` with tiny models: all its parts are there, its sums agree, and its text is the same with speculation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codespec.cli import demo
from tests.cli.conftest import Models


@pytest.fixture
def small(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts, a few tokens, the tiny pair."""
    monkeypatch.setenv("CODESPEC_TARGET", str(models.target))
    monkeypatch.setenv("CODESPEC_DRAFTER", str(models.drafter))
    for name, value in {"SHOWN": 1, "MEASURED": 2, "TOKENS": 12}.items():
        monkeypatch.setattr(demo, name, value)


@pytest.mark.usefixtures("small")
def test_it_shows_and_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main() == 0
    streams = capsys.readouterr()
    out = streams.out
    assert streams.err == "" and out.startswith("green or [brackets]: guessed and accepted")
    assert out.count("⟨") == out.count("⟩") == 1
    assert re.search(r"\d+ tokens in \d+ rounds, \d+ of \d+ drafted accepted, \d+ ms", out)
    assert re.search(r"plain: +\d+\.\d tokens/s  \(fastest of float32, bfloat16: (float32|bfloat16)\)", out)
    assert re.search(r"speculation: +\d+\.\d tokens/s", out)
    assert re.search(r"speed-up: \d+\.\d\d × \(median of 2 prompts; min \d+\.\d\d, max \d+\.\d\d\)", out)
    assert "same text as plain: 4 of 4" in out
    accepted, drafted = map(int, re.search(r"accepted (\d+) of (\d+) drafted", out).groups())  # type: ignore[union-attr]
    assert accepted <= drafted > 0
    shares = [int(share) for share in re.findall(r"(\d+) %", out.splitlines()[-1])]
    assert len(shares) == 5 and 97 <= sum(shares) <= 103


@pytest.mark.usefixtures("small")
def test_what_the_engines_noticed_is_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codespec.engine.load.find_variance", lambda model: "it varies")
    assert demo.main() == 0
    assert capsys.readouterr().err.count("exact mode does not hold here (it varies)") == 1


def test_a_missing_pair_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CODESPEC_TARGET", str(tmp_path / "none"))
    assert demo.main() == 2
    streams = capsys.readouterr()
    assert (
        streams.out == ""
        and streams.err.startswith("codespec: There is no model folder")
        and streams.err.count("\n") == 1
    )
