"""`codespec scale` on the command line, without starting Ray."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from codespec_scale.command import spelled

from tests.cli.conftest import Command, command, plain_environment

__all__ = ["command", "plain_environment"]
find_spec = importlib.util.find_spec


class Up:
    """The module that would start Ray."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def run(self, *given: Any) -> int:
        self.calls.append(given)
        return 0


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> Up:
    found = Up()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True if name == "ray" else find_spec(name))
    monkeypatch.setitem(sys.modules, "codespec_scale.up", found)
    return found


def test_without_ray_it_says_how_to_install_it(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find_spec(name))
    command("scale", "up", "--replicas", "2").check_mistake("Ray is not installed", "pip install ./plugins/scale")


def test_flags_become_settings(command: Command, up: Up, tmp_path: Path) -> None:
    words = [
        "--replicas",
        "3",
        "--model",
        "starter",
        "--no-prefetch",
        "--caps",
        "comment=3",
        "--queue",
        "9",
    ]
    assert command("scale", "up", *words, "--port", "9000", "--gpus", "1", "--token-file", tmp_path / "t").code == 0
    ((host, port, settings),) = up.calls
    assert (host, port) == ("127.0.0.1", 9000)
    assert settings == {
        "replicas": "3",
        "cpus": "1",
        "gpus": "1",
        "token_file": str(tmp_path / "t"),
        "model": "starter",
        "prefetch": "False",
        "caps": "comment=3",
        "queue": "9",
    }


def test_a_named_file_of_settings_goes_to_the_replicas(command: Command, up: Up, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('model = "starter"\n')
    assert command("scale", "up", "--replicas", "2", "--config", file).code == 0
    assert up.calls[0][2]["config"] == str(file)


def test_mistakes(command: Command, up: Up) -> None:
    command("scale", "up").check_mistake("--replicas")
    command("scale", "up", "--replicas", "2", "--colour", "red").check_mistake("--colour")
    command("scale", "up", "--replicas", "2", "--socket", "s").check_mistake("--socket")
    command("scale").check_mistake("ACTION")
    command("scale", "up", "--replicas", "2", "--target", "./none").check_mistake("There is no model folder none")
    command("scale", "up", "--replicas", "2", "--threads", "-1").check_mistake("threads")
    assert not up.calls


def test_values_as_flags_take_them() -> None:
    assert [spelled(value) for value in (True, 3, "a", {"a": 1, "b": 2})] == ["True", "3", "a", "a=1,b=2"]
