"""The laboratory and the plugins, with and without their packages installed."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from codespec_lab.commands import MODULES

from codespec.cli import main
from codespec.cli.parts import COMMANDS, GROUP, PARTS, find_part
from codespec.errors import ConfigError
from tests.cli.conftest import Command, command, plain_environment

__all__ = ["command", "plain_environment"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench"], "`codespec bench` is in the package codespec-lab, which is not installed: run `pip install ./lab`"),
        (["bench", "decode", "--limit", "3"], "codespec-lab"),
        (["train", "--help"], "codespec-lab"),
        (["distill"], "codespec-lab"),
        (
            ["scale", "up", "--replicas", "2"],
            "codespec-scale, which is not installed: run `pip install ./plugins/scale`",
        ),
    ],
)
def test_a_missing_command_names_its_package(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words, parts={}) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.endswith(" in codespec's checkout.\n") and err.count("\n") == 1


def test_a_missing_back_end_names_its_package(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec.cli.parts.installed", dict)
    message = "`codespec serve --upstream` is in the package codespec-upstream, which is not installed"
    fix = "run `pip install ./plugins/upstream` in codespec's checkout"
    command("serve", "--upstream", "http://127.0.0.1:9").check_mistake(message, fix)
    done = command("doctor", "--upstream", "http://127.0.0.1:9")
    assert done.code == 1 and message in done.out and fix in done.out


def test_a_package_that_a_part_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    for name in [name for name in sys.modules if name.startswith("codespec_upstream")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        ConfigError, match=r"needs aiohttp, which is not installed: run `pip install \./plugins/upstream`"
    ):
        find_part("upstream")


def test_the_overview_names_missing_commands_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], parts={}) == 0
    shown = capsys.readouterr().out
    for name in COMMANDS:
        assert f"    {name} " in shown
    assert " ".join(shown.split()).count("(not installed)") == len(COMMANDS)


def test_no_other_name_becomes_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["attic"], parts={**MODULES, "attic": "os"})
    assert "attic" in capsys.readouterr().err


def test_every_part_is_an_entry_point_of_its_package() -> None:
    found = dict[str, str]()
    for folder in {part.folder for part in PARTS.values()}:
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        modules = project["entry-points"][GROUP]
        assert {project["name"]} == {PARTS[name].package for name in modules}
        found |= modules
    assert found.keys() == PARTS.keys() and MODULES.items() <= found.items()
    assert {point.name: point.value for point in entry_points(group=GROUP)} == found


@pytest.mark.parametrize("name", ["scale", "upstream"])
def test_an_extra_is_what_the_plugin_of_its_name_depends_on(name: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    plugin = tomllib.loads((ROOT / "plugins" / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extras[name] == plugin["dependencies"]
