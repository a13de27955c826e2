"""`make demo` with tiny models: all its parts are there, its sums agree, and its text is the same with speculation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codespec.cli import demo
from codespec.models.call_shape import FAST
from codespec.models.invariance import Finding
from tests.cli.conftest import Models
from tests.engine.test_planted_faults import correction_dropped


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
    varies = Finding(FAST, "it varies")
    monkeypatch.setattr("codespec.engine.calls._kept", lambda model, *_: varies if model.exact else Finding(FAST))
    correction_dropped(monkeypatch)
    assert demo.main() == 0, "near-ties may differ there"
    streams = capsys.readouterr()
    assert streams.err.count("exact mode does not hold here (it varies)") == 1 == streams.err.count("\n")
    note = "(fast mode is used for float32, bfloat16: there, differences are near-ties)"
    assert re.search(rf"same text as plain: [0-3] of 4 {re.escape(note)}\n", streams.out)


@pytest.mark.usefixtures("small")
def test_a_wrong_text_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected token is committed: all is shown, then it is said where the first text goes wrong."""
    correction_dropped(monkeypatch)
    assert demo.main() == 1
    streams = capsys.readouterr()
    assert "same text as plain: 4 of 4" not in streams.out and "time with speculation: " in streams.out
    assert re.fullmatch(
        r"codespec: A text differs from plain decoding, which exact mode rules out \(\w\S*\.py, token \d+, "
        r"(float32|bfloat16)(, and \d more)?\): report it with the output of `codespec doctor`\.\n",
        streams.err,
    ), streams.err


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
