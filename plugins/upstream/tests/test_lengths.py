"""Prompts fit the server's context although only the server knows its tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from codespec_upstream.client import Excess, UpstreamClient
from codespec_upstream.source import Upstream

from plugins.upstream.tests.servers import DONE, Behaviour, FakeServer, Request, chunk, fake_server, head
from plugins.upstream.tests.test_daemon import complete, text_of
from tests.server.daemons import Served, serving_source

CONTEXT = 2048
HEX = "".join(f"    0x{number:08x}, 0x{number * 7919:08x},\n" for number in range(400))
FLOATS = "".join(f"    {number * 0.7310585:.9f}, -{number * 1.6180339:.9f},\n" for number in range(400))
LIMIT = f"This model's maximum context length is {CONTEXT} tokens. However,"
PLACE = {"prefix": f"TABLE = [\n{HEX}    ", "suffix": f"\n{HEX}]\n", "path": "a.py", "document": "hex"}


def count(request: Request) -> int:
    """Count like a tokenizer: a token for each digit, one for four letters."""
    text = request.body["prompt"]
    digits = sum(character.isdigit() or character in "abcdefx" for character in text)
    return digits + (len(text) - digits) // 4


def refusal(tokens: int) -> dict[str, Any]:
    """Return llama-server's error."""
    message = f"the request exceeds the available context size ({CONTEXT} tokens), try increasing it"
    error = {"code": 400, "message": message, "type": "exceed_context_size_error"}
    return {"error": {**error, "n_prompt_tokens": tokens, "n_ctx": CONTEXT}}


async def counting(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
    """Answer a prompt that fits, and refuse any other."""
    tokens = count(request)
    if tokens + request.body["max_tokens"] > CONTEXT:
        writer.write(head("400 Bad Request", "application/json") + json.dumps(refusal(tokens)).encode())
        return
    usage = {"prompt_tokens": tokens, "completion_tokens": 1}
    writer.write(head() + chunk("1", "stop") + b"data: " + json.dumps({"choices": [], "usage": usage}).encode())
    writer.write(b"\n\n" + DONE)


async def counting_to_the_limit(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
    """Answer like `counting`, but count no further than the limit, as vLLM does."""
    room = CONTEXT - request.body["max_tokens"]
    if count(request) <= room:
        await counting(server, request, writer)
        return
    message = f"{LIMIT} you requested {CONTEXT - room} output tokens and your prompt contains at least {room + 1} input"
    error = {"message": f"{message} tokens.", "type": "BadRequestError", "code": 400}
    writer.write(head("400 Bad Request", "application/json") + json.dumps({"error": error}).encode())


@pytest.fixture
def upstream() -> Iterator[FakeServer]:
    with fake_server(behaviour=counting) as server:
        yield server


@pytest.fixture
def daemon(upstream: FakeServer) -> Iterator[Served]:
    with serving_source(Upstream(UpstreamClient(upstream.url, patience=5.0), budget=4096)) as served:
        yield served


def test_a_prompt_that_is_too_long_is_sent_once_more_and_shorter(upstream: FakeServer, daemon: Served) -> None:
    assert text_of(complete(daemon, **PLACE, shape="line", max_tokens=64)) == "1"
    first, second = (count(request) for request in upstream.streams)
    assert first > CONTEXT > second + 64 > CONTEXT // 2, "it uses the context that there is"
    assert upstream.streams[1].body["prompt"].count("0x") > 50


def test_the_next_prompt_of_the_document_fits_at_once(upstream: FakeServer, daemon: Served) -> None:
    for typed in ("", "0", "0x"):
        complete(daemon, **{**PLACE, "prefix": PLACE["prefix"] + typed}, shape="line", max_tokens=64)
    assert len(upstream.streams) == 4, "one refusal"
    complete(
        daemon, **{**PLACE, "document": "words", "prefix": "moss " * 2000, "suffix": ""}, shape="line", max_tokens=64
    )
    assert len(upstream.streams) == 5 and len(upstream.streams[-1].body["prompt"]) > 2 * CONTEXT, "another document"


@pytest.mark.parametrize("behaviour", [counting, counting_to_the_limit])
@pytest.mark.parametrize("lines", [HEX, FLOATS], ids=["hex", "floats"])
def test_a_refused_document_is_refused_once(
    upstream: FakeServer, daemon: Served, lines: str, behaviour: Behaviour
) -> None:
    upstream.behaviour = behaviour
    for typed in ("", "0", "0.", "0.1"):
        place = {**PLACE, "prefix": f"TABLE = [\n{lines}    {typed}", "suffix": f"\n{lines}]\n"}
        assert text_of(complete(daemon, **place, shape="line", max_tokens=64)) == "1"
    assert len(upstream.streams) == 5
    assert CONTEXT // 2 < count(upstream.streams[-1]) <= CONTEXT - 64, "usage tells how much fits"


def test_what_a_shorter_prompt_leaves_out_is_in_the_notes(upstream: FakeServer, daemon: Served) -> None:
    place = {"prefix": HEX[:5600], "suffix": "", "path": "a.py", "shape": "raw", "max_tokens": 64}
    events = complete(daemon, **place)
    first, second = (request.body["prompt"] for request in upstream.streams)
    assert len(first) == 5600 > len(second) > 0
    assert sum("near the cursor were sent" in note for note in events[-1][1]["stats"]["notes"]) == 1


def test_a_document_without_a_name_gets_its_shorter_prompt_too(upstream: FakeServer, daemon: Served) -> None:
    place = {**PLACE, "document": ""}
    assert text_of(complete(daemon, **place, shape="line", max_tokens=64)) == "1" and len(upstream.streams) == 2


def test_a_server_that_goes_on_refusing_is_asked_twice(upstream: FakeServer, daemon: Served) -> None:
    async def refuse(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(head("400 Bad Request", "application/json") + json.dumps(refusal(count(request))).encode())

    upstream.behaviour = refuse
    answer = daemon.post("/v1/completions", {"prompt": HEX, "max_tokens": 8, "stream": False})
    assert answer.status == 400 and "exceeds the available context size" in answer.json["error"]["message"]
    assert len(upstream.streams) == 2


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("This model's maximum context length is 4097 tokens, however you requested 4157 tokens (4141 in your prompt; "
         "16 for the completion). Please reduce your prompt; or completion length.", Excess(4141, 4097)),
        ("This model's maximum context length is 2048 tokens. However, your request has 2100 input tokens. Please "
         "reduce the length of the input messages.", Excess(2100, 2048)),
        ("This model's maximum context length is 2048 tokens. However, you requested 64 output tokens and your prompt "
         "contains at least 1985 input tokens, for a total of at least 2049 tokens.", Excess(1985, 2048, True)),
        (f"{LIMIT} your prompt contains 2100 input tokens.", Excess(2100, 2048)),
        ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
         Excess(9001, 8192)),
        ("max_tokens is too large", None),
    ],
)  # fmt: skip
def test_what_servers_say_of_a_prompt_that_is_too_long(message: str, expected: Excess | None) -> None:
    assert Excess.read({"error": {"message": message, "code": 400}}) == expected
    assert Excess.read({"message": message}) == expected, "vLLM's older form"
    assert Excess.read({"error": message}) is None
    assert Excess.read({"error": {"n_prompt_tokens": "many", "n_ctx": -1}}) is None
