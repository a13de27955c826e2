"""Streams are split at the same places by clients that use Unicode line ends (Ollama's, httpx) and by others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from codespec.api.types import CompletionRequest
from tests.server.daemons import Served, serving
from tests.server.fakes import FakeEngine, answer

ODD = 'a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\x1fj\rk\nl\x7fm\ufeffn\u200bo\\u2028p"q\U0001f600'
STREAMS = {
    "/v1/completions": {"prompt": ODD, "max_tokens": len(ODD), "stream": True},
    "/api/generate": {"prompt": ODD, "options": {"num_predict": len(ODD)}},
    "/completion": {"prompt": ODD, "n_predict": len(ODD), "stream": True},
    "/v1/codespec/complete": {"prefix": ODD, "max_tokens": len(ODD), "shape": "raw"},
}


@pytest.fixture(scope="module")
def odd() -> Iterator[Served]:
    """Run a daemon that writes its prompt backwards."""
    with serving(FakeEngine()) as served:
        yield served


def text_of(path: str, message: dict[str, Any]) -> str:
    """Return the text of one message of a stream."""
    if path == "/v1/completions":
        return str(message["choices"][0]["text"]) if message["choices"] else ""
    name = {"/api/generate": "response", "/completion": "content"}.get(path, "text")
    return str(message.get(name, ""))


@pytest.mark.parametrize("path", STREAMS)
def test_lines_as_unicode_ends_them(odd: Served, path: str) -> None:
    reply = odd.post(path, STREAMS[path])
    assert reply.status == 200
    shown = [line for line in reply.body.decode().splitlines() if line and not line.startswith("event: ")]
    lines = [line.removeprefix("data: ") for line in shown]
    messages = [json.loads(line) for line in lines if line != "[DONE]"]
    expected = answer(CompletionRequest(prefix=ODD, max_tokens=len(ODD)))
    assert "".join(text_of(path, each) for each in messages if "source" not in each) == expected


def test_a_whole_reply_is_one_line(odd: Served) -> None:
    body = {"prompt": ODD, "max_tokens": len(ODD)}
    reply = odd.post("/v1/completions", body)
    assert len(reply.body.decode().splitlines()) == 1
    assert reply.json["choices"][0]["text"] == ODD[::-1]
