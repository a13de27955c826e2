"""The extension's settings equal the server's: names, defaults, ranges and choices."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from codespec_lsp.settings import EditorSettings, camel

from codespec.api.settings import declared
from tests.lsp.conversation import run
from tests.lsp.fake_daemon import talking

PACKAGE = Path(__file__).resolve().parents[2] / "editors/vscode/package.json"
OF_THE_EXTENSION = {"command", "python", "installFrom", "token"}


def shown() -> dict[str, Any]:
    """Return the settings that VS Code shows, without those that the server does not read."""
    found = json.loads(PACKAGE.read_text(encoding="utf-8"))["contributes"]["configuration"]["properties"]
    named = {name.removeprefix("codespec."): value for name, value in found.items()}
    assert named.keys() >= OF_THE_EXTENSION
    return {name: value for name, value in named.items() if name not in OF_THE_EXTENSION}


def test_vs_code_shows_every_setting_of_the_server_and_no_other() -> None:
    assert shown().keys() == {camel(item.name) for item in fields(EditorSettings)}


def test_defaults_are_the_servers() -> None:
    defaults = EditorSettings()
    for item in fields(EditorSettings):
        value = getattr(defaults, item.name)
        assert shown()[camel(item.name)]["default"] == (list(value) if isinstance(value, tuple) else value), item.name


def test_ranges_and_choices_are_the_servers() -> None:
    for name, facts in declared(EditorSettings).items():
        there = shown()[camel(name)]
        assert (there.get("minimum"), there.get("maximum")) == (facts.least, facts.most), name
        assert tuple(there.get("enum", ())) == facts.choices, name


def test_no_command_of_the_extension_is_one_of_the_servers() -> None:
    """VS Code's client registers the server's commands itself, and fails if one already exists."""
    contributed = json.loads(PACKAGE.read_text(encoding="utf-8"))["contributes"]["commands"]

    async def scenario() -> None:
        async with talking() as (client, _):
            offered = client.capabilities["executeCommandProvider"]["commands"]
            assert offered and not {each["command"] for each in contributed} & set(offered)

    run(scenario())
