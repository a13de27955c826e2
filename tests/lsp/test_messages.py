"""The protocol itself: invalid messages get the protocol's error, and only an exit ends the server."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from codespec_lsp.messages import MAX_TOLD
from codespec_lsp.protocol import LspProtocol
from codespec_lsp.settings import EditorSettings

from tests.lsp.conversation import Editor, question, run, until
from tests.lsp.fake_daemon import editor, talking

REPORT = "Please report this to the makers of the editor."
METHODS = ["initialize", "shutdown", "textDocument/inlineCompletion", "textDocument/didOpen", "codespec/status"]
METHODS += ["textDocument/didChange", "workspace/executeCommand", "$/cancelRequest", "textDocument/didClose", "no/such"]
METHODS += ["workspace/didChangeConfiguration", "textDocument/didFocus", "textDocument/completion", "$/setTrace", ""]
ODD: list[Any] = [
    None,
    0,
    -1,
    1e300,
    "",
    "x" * 500,
    [],
    {},
    [[]],
    {"uri": 3},
    True,
    {"textDocument": None},
    "file:///a.py",
]


@pytest.mark.parametrize(
    ("body", "code", "number"),
    [
        (b"{", -32700, None),
        (b"\xff\xfe", -32700, None),
        (b"[" * 100_000, -32700, None),
        (b"[]", -32600, None),
        (b'{"jsonrpc":"1.0","id":7,"method":"x"}', -32600, 7),
        (b'{"jsonrpc":"2.0","id":[1],"method":"x"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":8,"method":3}', -32600, 8),
        (b'{"jsonrpc":"2.0","id":9,"method":"no/such"}', -32601, 9),
        (b'{"jsonrpc":"2.0","id":9,"method":"initialize","params":{}}', -32600, 9),
        (b'{"jsonrpc":"2.0","id":9,"method":"workspace/didChangeConfiguration","params":{"settings":{}}}', -32600, 9),
        (b'{"jsonrpc":"2.0","id":"a","method":"textDocument/inlineCompletion","params":{"position":1}}', -32602, "a"),
    ],
)
def test_errors_are_the_protocols(body: bytes, code: int, number: object) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.send_bytes(body)
            await until(lambda: bool(client.stray or client.told[1:]) or bool(client.stray))
            (reply,) = client.stray
            assert (reply["error"]["code"], reply["id"]) == (code, number)
            client.open("x = \n")
            fake.script = ["1"]
            assert await client.texts(0, 4) == ["x = 1"], "the conversation goes on"

    run(scenario())


@pytest.mark.parametrize(
    ("method", "params", "words"),
    [
        ("$/cancelRequest", {"id": [[]]}, "id must be a string or a whole number"),
        ("window/workDoneProgress/cancel", {"token": {}}, "token must be a string or a whole number"),
        ("textDocument/didClose", {"textDocument": {"uri": 3}}, "textDocument.uri must be a string"),
        ("textDocument/didSave", {"textDocument": {"uri": 3}}, ""),
    ],
)
def test_a_notification_with_wrong_parameters_is_told_of_once_where_editors_show_it(
    method: str, params: object, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log names the field without its value, and ignores notifications that the server does not read."""

    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            client.notify(method, params)
            client.notify(method, params)
            client.send({"jsonrpc": "2.0", "id": [], "result": None})
            fake.script = ["1"]
            assert await client.texts(0, 4) == ["x = 1"]

    run(scenario())
    told = capsys.readouterr().err
    assert told == (f"codespec lsp: {method} can't be read: {words}. {REPORT}\n" if words else "")


@pytest.mark.parametrize("wrong", [{"error": 5}, {"error": {"code": "x", "message": "y"}}])
def test_a_response_that_is_none_is_reported_in_a_sentence(
    wrong: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            client.send({"jsonrpc": "2.0", "id": 1, **wrong})
            fake.script = ["1"]
            assert await client.texts(0, 4) == ["x = 1"]

    run(scenario())
    sentence = "A response can't be read: its fields are not those of the protocol."
    assert capsys.readouterr().err == f"codespec lsp: {sentence} {REPORT}\n"


def test_sentences_about_wrong_messages_are_short_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            for number in range(150):  # the sentence names the place of the wrong change
                changes = [*[{"text": "x = \n"}] * number, {"text": 5}]
                params = {"textDocument": {"uri": "file:///a.py", "version": 2}, "contentChanges": changes}
                client.notify("textDocument/didChange", params)
            client.open("x = \n")
            fake.script = ["1"]
            assert await client.texts(0, 4) == ["x = 1"]

    run(scenario())
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MAX_TOLD and all(line.startswith("codespec lsp: ") and len(line) < 250 for line in lines)


def test_a_notification_that_fails_is_told_where_editors_show_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no reply, and its text is not logged."""
    handle = LspProtocol.handle_message

    def fails(self: LspProtocol, message: Any) -> Any:
        return 1 / 0 if message.method == "textDocument/didClose" else handle(self, message)

    monkeypatch.setattr(LspProtocol, "handle_message", fails)

    async def scenario() -> None:
        async with talking() as (client, fake):
            client.notify("textDocument/didClose", {"textDocument": {"uri": "file:///secret.py"}})
            client.open("x = \n")
            fake.script = ["1"]
            assert await client.texts(0, 4) == ["x = 1"], "the conversation goes on"

    run(scenario())
    told = capsys.readouterr().err
    assert told.count("a message was skipped (ZeroDivisionError)") == 1 and "secret" not in told


def test_the_order_of_a_conversation() -> None:
    async def scenario() -> None:
        async with editor(EditorSettings(start_daemon=False)) as client:
            early = await client.begin("textDocument/inlineCompletion", question(0, 0))[1]
            assert early["error"]["code"] == -32002
            client.notify("textDocument/didOpen", {})
            await client.start()
            assert (await client.request("shutdown", None))["result"] is None
            assert (await client.request("codespec/status", {}))["error"]["code"] == -32600

    run(scenario())


@pytest.mark.parametrize("raw", [b"X: y\r\n" * 40, b"Content-Length: 99999999999\r\n\r\n", b"a" * (17 << 20)])
def test_what_can_not_be_followed_ends_with_an_error(raw: bytes) -> None:
    async def scenario() -> None:
        async with talking() as (client, _):
            client.send_raw(raw)
            await until(lambda: bool(client.stray))
            assert client.stray[0]["error"]["code"] == -32700

    run(scenario())


def test_headers_as_clients_send_them() -> None:
    async def scenario() -> None:
        async with talking() as (client, _):
            body = json.dumps({"jsonrpc": "2.0", "id": "h", "method": "codespec/status"}).encode()
            head = f"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\ncontent-length:{len(body)}\r\n\r\n"
            client.send_raw(head.encode() + body)
            await until(lambda: bool(client.stray))
            assert client.stray[0]["id"] == "h" and client.stray[0]["result"]["kind"] == "Normal"

    run(scenario())


def odd(source: random.Random, depth: int = 0) -> Any:
    """Return a random JSON value, sometimes an almost valid one."""
    kind = source.randrange(8)
    if kind < 4 or depth > 2:
        return source.choice(ODD)
    if kind < 5:
        return [odd(source, depth + 1) for _ in range(source.randrange(3))]
    names = ["textDocument", "position", "context", "contentChanges", "command", "arguments", "settings", "id", "item"]
    return {name: odd(source, depth + 1) for name in source.sample(names, source.randrange(5))}


def fuzzed(source: random.Random, number: int) -> bytes:
    """Return the body of one frame."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": source.choice(METHODS[2:]), "params": odd(source)}
    if source.random() < 0.6:
        message["id"] = number
    if source.random() < 0.2:
        message.pop(source.choice(list(message)))
    if source.random() < 0.1:
        message["result"] = odd(source)
    body = json.dumps(message).encode()
    if source.random() < 0.1:
        body = body[: source.randrange(len(body))]
    return body


def expects_reply(body: bytes) -> bool:
    try:
        message = json.loads(body)
    except ValueError:
        return False
    return isinstance(message.get("method"), str) and "id" in message and message.get("jsonrpc") == "2.0"


async def fuzz(client: Editor, count: int, seed: int) -> None:
    source = random.Random(seed)
    expected = set()
    for number in range(10_000, 10_000 + count):
        body = fuzzed(source, number)
        client.send_bytes(body)
        if expects_reply(body):
            expected.add(number)
    await until(lambda: len(client.stray) >= len(expected))
    await until(lambda: expected <= {message.get("id") for message in client.stray})
    for message in client.stray:
        assert ("error" in message) != ("result" in message)
        assert "error" not in message or -33000 < message["error"]["code"] < -32000


@pytest.mark.parametrize("count", [400, pytest.param(20_000, marks=pytest.mark.full)])
def test_fuzzed_messages(count: int) -> None:
    """No crash, no hang: every request gets its result or an error, and the server still works afterwards."""

    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("x = \n", uri="file:///b.py")
            await fuzz(client, count, seed=6)
            client.notify("workspace/didChangeConfiguration", {"settings": {"enabled": True, "languages": {}}})
            client.open("x = \n", uri="file:///c.py")
            assert await client.texts(0, 4, uri="file:///c.py") == ["x = 1"]

    run(scenario(), seconds=900)
