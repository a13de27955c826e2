"""Fields in the forms of old clients, and empty objects and lists as Lua and PHP spell them: each as the other."""

from __future__ import annotations

from typing import Any

import pytest
from codespec_lsp.protocol import READERS, Misread
from codespec_lsp.settings import EditorSettings, read_settings
from lsprotocol import types

from tests.lsp.conversation import run
from tests.lsp.fake_daemon import talking


def test_an_empty_table_is_a_list_or_an_object() -> None:
    empty: dict[str, Any] = {"workspaceFolders": {}, "clientInfo": [], "initializationOptions": []}

    async def scenario() -> None:
        async with talking(start=empty) as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            client.notify("workspace/didChangeWorkspaceFolders", {"event": {"added": {}, "removed": {}}})
            client.notify(
                "textDocument/didChange", {"textDocument": {"uri": "file:///a.py", "version": 2}, "contentChanges": {}}
            )
            place = {"textDocument": {"uri": "file:///a.py"}, "position": {"line": 0, "character": 4}}
            reply = await client.request("textDocument/inlineCompletion", {**place, "context": []})
            assert [item["insertText"] for item in reply["result"]["items"]] == ["x = 1"]

    run(scenario())


def test_empty_tables_in_settings() -> None:
    above = EditorSettings(exclude=("*.md",), languages={"markdown": False})
    for empty in ([], {}):
        found, faults = read_settings({"exclude": empty, "languages": empty, "daemonArguments": empty}, above)
        assert (found.exclude, found.languages, found.daemon_arguments, faults) == ((), {}, (), [])
    assert read_settings({"exclude": {"a": 1}, "languages": ["a"]}, above)[0] == above


@pytest.mark.parametrize("empty", [[], {}])
def test_what_is_required_is_still_missed(empty: object) -> None:
    for params in (
        {"textDocument": empty, "contentChanges": []},
        {"textDocument": {"uri": "x"}, "contentChanges": [empty]},
    ):
        with pytest.raises(Misread, match=r"(textDocument\.uri|contentChanges\.0\.text) must be a string"):
            READERS[types.TEXT_DOCUMENT_DID_CHANGE](params)


def test_a_root_path_that_names_no_folder_is_not_read() -> None:
    async def scenario() -> None:
        async with talking(start={"rootPath": "/p/\ud800"}) as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            assert await client.texts(0, 4) == ["x = 1"]

    run(scenario())


@pytest.mark.parametrize("selected", [None, [], {}])
def test_a_selection_that_is_an_empty_table_is_none(selected: object) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            assert await client.texts(0, 4, selectedCompletionInfo=selected) == ["x = 1"]

    run(scenario())
