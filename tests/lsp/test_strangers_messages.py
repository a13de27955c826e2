"""Messages that are refused before their fields are read: a change among them must not let a text drift silently."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from codespec_lsp import messages

from tests.lsp.conversation import insertion, run
from tests.lsp.fake_daemon import talking

CHANGE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "method": "textDocument/didChange",
    "params": {"textDocument": {"uri": "file:///a.py", "version": 2}, "contentChanges": [insertion(0, 0, "yy")]},
}
WHOLE = json.dumps(CHANGE).encode()


def nested(depth: int) -> Any:
    return [] if not depth else [nested(depth - 1)]


REFUSED = {
    "not UTF-8, as for a file in another encoding": WHOLE.replace(b"yy", b"y\xff"),
    "UTF-16": json.dumps(CHANGE).encode("utf-16"),
    "a byte-order mark": b"\xef\xbb\xbf" + WHOLE,
    "text after the end": WHOLE + b"x",
    "a control character": WHOLE.replace(b"yy", b"y\n"),
    "a slash escaped as in Lua, and no end": WHOLE.replace(b"/did", rb"\/did")[:-1],
    "digits without an end": WHOLE.replace(b'"version": 2', b'"version": ' + b"9" * 5000),
    "nested too deeply": json.dumps({**CHANGE, "more": nested(70)}).encode(),
    "a batch": b"[" + WHOLE + b"]",
    "no version of the protocol": json.dumps({**CHANGE, "jsonrpc": 2.0}).encode(),
    "an id": json.dumps({**CHANGE, "id": 1}).encode(),
    "an id that is null, as in JSON-RPC 1.0": json.dumps({**CHANGE, "id": None}).encode(),
    "an id and wrong fields": json.dumps({**CHANGE, "id": 1, "params": {"textDocument": 1}}).encode(),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_change_in_a_refused_message_loses_the_text_aloud(why: str) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            client.send_bytes(REFUSED[why])
            assert await client.texts(0, 4) == [] and not fake.asked, "the old text is not completed"
            assert "could not be read" in (await client.status())["message"]
            client.change(3, {"text": "z = \n"})
            assert await client.texts(0, 4) == ["z = 1"], "the whole text brings it back"

    run(scenario())


def test_another_message_that_can_not_be_parsed_loses_nothing() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            client.send_bytes(b'{"jsonrpc":"2.0","method":"workspace/didChangeConfiguration","params":{')
            client.send_bytes(b'{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"text":"\xff')
            assert await client.texts(0, 4) == ["x = 1"]

    run(scenario())


@pytest.mark.parametrize(("method", "kept"), [("didOpen", True), ("didChange", False)])
def test_a_message_that_is_too_long_is_skipped(method: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neovim sends whole files of any size: one more than the limit must not end the completions of the others."""
    monkeypatch.setattr(messages, "MAX_BODY", 1 << 18)

    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            text = "y" * (3 << 20)
            params = {"textDocument": {"uri": "file:///b.py", "text": text}, "contentChanges": [{"text": text}]}
            client.notify(f"textDocument/{method}", params)
            assert await client.texts(0, 4) == (["x = 1"] if kept else [])
            assert "longer than" in client.stray[0]["error"]["message"]

    run(scenario())


def test_an_input_that_can_not_be_polled_ends_the_server() -> None:
    """As with `codespec lsp </dev/null`, or with a file of messages."""

    async def scenario() -> None:
        with open(os.devnull, "rb") as nothing:
            assert await (await messages._stdin(nothing)).readline() == b""

    run(scenario())
