"""The laboratory's commands with and without the laboratory installed."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
from codespec_lab.commands import MODULES

from codespec.cli.main import GROUP, NAMES, main


@pytest.mark.parametrize("words", [["bench"], ["bench", "decode", "--limit", "3"], ["train", "--help"], ["distill"]])
def test_a_missing_laboratory_says_how_to_install_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words, laboratory={}) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"codespec: `codespec {words[0]}` is in codespec's laboratory, which is not installed: "
        "run `pip install ./lab` in codespec's checkout.\n"
    )


def test_the_overview_names_its_commands_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], laboratory={}) == 0
    shown = capsys.readouterr().out
    for name in NAMES:
        assert f"    {name} " in shown
    assert " ".join(shown.split()).count("(not installed)") == len(NAMES)


def test_no_other_name_becomes_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["attic"], laboratory={**MODULES, "attic": "os"})
    assert "attic" in capsys.readouterr().err


def test_entry_points_name_the_same_modules() -> None:
    assert {point.name: point.value for point in entry_points(group=GROUP)} == MODULES
    assert set(MODULES) == set(NAMES)
