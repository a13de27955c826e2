"""Features offered to each kind of client: settings, Copilot's messages, commands, the fallback for older clients."""

from __future__ import annotations

from typing import Any

import pytest
from codespec_lsp.daemon import Daemons
from codespec_lsp.server import Server
from codespec_lsp.settings import EditorSettings, read_settings

from tests.lsp.conversation import URI, Editor, insertion, replacement, run, until
from tests.lsp.fake_daemon import talking

DYNAMIC = {"textDocument": {"inlineCompletion": {"dynamicRegistration": True}}}


def test_registered_later_where_the_client_can_take_it() -> None:
    async def scenario() -> None:
        async with talking(start={"capabilities": DYNAMIC}) as (client, fake):
            assert "inlineCompletionProvider" not in client.capabilities
            await until(lambda: bool(client.asked))
            ((method, params),) = client.asked
            (registration,) = params["registrations"]
            assert (method, registration["method"]) == ("client/registerCapability", "textDocument/inlineCompletion")
            schemes = [each["scheme"] for each in registration["registerOptions"]["documentSelector"]]
            assert schemes == ["file", "untitled", "vscode-notebook-cell"]
            client.open("x = \n")
            fake.script = ["1"]
            assert await client.texts(0, 4) == ["x = 1"]

    run(scenario())


def test_completion_for_clients_without_inline_completion() -> None:
    async def scenario() -> None:
        async with talking(start={"capabilities": {}}) as (client, fake):
            assert "completionProvider" in client.capabilities
            client.open("x = fo\n")
            fake.script = ["o(\n    1)"]
            place = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 6}}
            result = (await client.request("textDocument/completion", place))["result"]
            (item,) = result["items"]
            assert result["isIncomplete"] and item["label"] == "foo("
            assert item["textEdit"] == {"range": replacement(0, 4, 0, 6, "")["range"], "newText": "foo(\n    1)"}
            assert item["command"]["command"] == "codespec.accept" and item["filterText"] == "foo("

    run(scenario())


@pytest.mark.parametrize(("setting", "inline", "offered"), [("on", True, True), ("off", False, False)])
def test_completion_as_the_user_sets_it(setting: str, inline: bool, offered: bool) -> None:
    async def scenario() -> None:
        capabilities = {"textDocument": {"inlineCompletion": {}}} if inline else {}
        start = {"capabilities": capabilities, "initializationOptions": {"completion": setting}}
        async with talking(start=start) as (client, _):
            assert ("completionProvider" in client.capabilities) is offered

    run(scenario())


async def accepted(client: Editor) -> list[Any]:
    counters = (await client.status())["counters"]
    return [counters[name] for name in ("shown", "accepted", "partlyAccepted", "acceptedCharacters")]


def test_taking_is_counted_however_it_is_told() -> None:
    """From the item's command, Copilot's message, or edits alone; each suggestion counts once."""

    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("s = '😀' + \n")
            fake.script = ["foo(bar)"]
            (item,) = await client.items(0, 11)
            assert await accepted(client) == [1, 0, 0, 0]
            client.notify("textDocument/didShowCompletion", {"item": item})
            client.notify("textDocument/didPartiallyAcceptCompletion", {"item": item, "acceptedLength": 7})
            assert await accepted(client) == [1, 0, 1, 3]
            client.type(2, 0, 11, "foo")
            assert await accepted(client) == [1, 0, 1, 3]
            client.change(3, replacement(0, 0, 0, 14, "s = '😀' + foo(bar)"))
            assert await accepted(client) == [1, 1, 0, 8]
            await client.request("workspace/executeCommand", item["command"])
            assert await accepted(client) == [1, 1, 0, 8]
            await client.items(0, 19)
            client.type(4, 0, 19, "foo(b")
            assert await accepted(client) == [2, 1, 1, 13]
            for params in ({}, {"item": 3}, {"item": {"command": {"arguments": ["1", {}, 0]}}, "acceptedLength": "x"}):
                client.notify("textDocument/didPartiallyAcceptCompletion", params)
                client.notify("textDocument/didFocus", params)
            assert await accepted(client) == [2, 1, 1, 13]

    run(scenario())


def test_settings_can_change() -> None:
    async def scenario() -> None:
        async with talking(start={"initializationOptions": {"languages": {"python": False}}}) as (client, fake):
            client.open("x = \n")
            fake.script = ["1"]
            assert await client.texts(0, 4) == []
            assert "switched off for python" in (await client.status())["message"]
            sent = {"settings": {"codespec": {"languages": {}, "exclude": ["b.py"], "maxTokens": 7, "theme": "dark"}}}
            client.notify("workspace/didChangeConfiguration", sent)
            assert await client.texts(0, 4) == ["x = 1"] and fake.asked[0].body["max_tokens"] == 7
            client.open("x = \n", uri="file:///b.py")
            assert await client.texts(0, 4, uri="file:///b.py") == []
            client.notify("workspace/didChangeConfiguration", {"settings": {"enabled": False}})
            assert await client.texts(0, 4) == [] and (await client.status())["kind"] == "Inactive"
            client.notify("workspace/didChangeConfiguration", {"settings": {"enabled": "yes", "budgetMs": 1}})
            await client.hear("window/showMessage", 2)
            told = [message["message"] for message in client.heard("window/showMessage")]
            assert "codespec.enabled must be true or false" in told[0] and "budgetMs" in told[1]

    run(scenario())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("enabled", False), ("languages", {"python": False}), ("maxTokens", 7), ("alternatives", 1), ("more", False)),
        *(("snippets", False), ("exclude", ["*.py"]), ("secretFiles", ["*.py"]), ("budgetMs", 50), ("model", "x")),
        *(("notSecretFiles", ["a"]), ("url", "http://127.0.0.1:9"), ("tokenFile", "t"), ("daemonArguments", ["-v"])),
    ],
)
def test_a_removed_setting_is_no_longer_in_force(name: str, value: object) -> None:
    """It is that of the initialization options, else the default. An invalid one stays, and so do all without any."""

    async def scenario() -> None:
        server = Server(Daemons(), EditorSettings(start_daemon=False))
        server.protocol.set_writer(Silent())
        server.configure({"invokedBudgetMs": 77}, first=True)
        before = server.session.settings
        server.configure({"codespec": {name: value}})
        changed = server.session.settings
        assert changed != before and changed.invoked_budget_ms == 77
        server.configure(None)
        server.configure({"codespec": {name: object()}})
        assert server.session.settings == changed
        server.configure({"codespec": {"invokedBudgetMs": 99}})
        server.configure({"codespec": {}})
        assert server.session.settings == before
        await server.session.close()

    run(scenario())


class Silent:
    """A writer that drops everything."""

    def write(self, data: bytes) -> None:
        """Drop a message."""

    def close(self) -> None:
        """Do nothing."""


def test_settings_are_fetched_where_the_client_wants_to_be_asked() -> None:
    async def scenario() -> None:
        capabilities = {"textDocument": {"inlineCompletion": {}}, "workspace": {"configuration": True}}
        async with talking(start={"capabilities": capabilities}) as (client, _):
            client.answers["workspace/configuration"] = [{"enabled": False}]
            client.notify("workspace/didChangeConfiguration", {"settings": None})
            client.open("x = \n")
            await until(lambda: bool(client.asked))
            while (await client.status())["kind"] != "Inactive":
                client.notify("textDocument/didFocus", {"textDocument": {"uri": URI}})
            assert await client.texts(0, 4) == [], "the fetched setting holds"

    run(scenario())


@pytest.mark.parametrize(
    ("sent", "faults"),
    [
        ({"budgetMs": 500, "exclude": ["*.x"], "languages": {"c": True}, "url": "http://localhost:1"}, 0),
        ({"codespec": {"alternatives": 9}}, 1),
        ({"url": "ftp://x", "tokenFile": 3, "completion": "maybe", "exclude": "x"}, 4),
        ({"url": "http://[", "languages": {"c": 1}, "maxTokens": True}, 3),
        ([1], 0),
        ({"another": 1, "enabled": None}, 0),
    ],
)
def test_reading_settings(sent: object, faults: int) -> None:
    settings, told = read_settings(sent, EditorSettings())
    assert len(told) == faults and all("must be" in fault for fault in told)
    if faults:
        assert settings == EditorSettings()


def test_commands() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            assert set(client.capabilities["executeCommandProvider"]["commands"]) == {
                "codespec.accept",
                "codespec.restart",
                "codespec.restartDaemon",
                "codespec.explain",
                "codespec.acceptEdit",
                "codespec.dismissEdit",
            }
            client.open("x = \n")
            fake.script = ["1"]
            await client.texts(0, 4)
            explained = await client.request("workspace/executeCommand", {"command": "codespec.explain"})
            assert explained["result"]["finish_reason"] == "stop" and explained["result"]["sentences"]
            assert "error" not in await client.request("workspace/executeCommand", {"command": "codespec.restart"})
            unknown = await client.request("workspace/executeCommand", {"command": "codespec.unknown"})
            assert unknown["error"]["code"] == -32602

    run(scenario())


def test_a_closed_document_is_forgotten() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            _, reply = client.ask(0, 4)
            asked = await fake.question()
            client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
            assert (await reply)["error"]["code"] == -32801
            await asked.gone.wait()
            client.change(2, insertion(0, 0, "late"))
            assert await client.texts(0, 4) == []

    run(scenario())
