"""Events, numbers and addresses in forms that other programs between codespec and a model produce."""

from __future__ import annotations

import asyncio
import json

import pytest
from codespec_upstream.client import MAX_RETRY_AFTER, UpstreamClient, UpstreamError, base_of
from codespec_upstream.writer import read_chunk

from codespec.client import daemon_client
from codespec.client.connections import EventReader
from codespec.errors import ConfigError
from plugins.upstream.tests.servers import FakeServer, Request, fake_server, head


@pytest.mark.parametrize(
    ("sent", "data"),
    [
        (b"\xef\xbb\xbfdata: 1\n\ndata: 2\n\n", [b"1", b"2"]),
        (b"data:\n\ndata: 1\n\ndata: \n\n", [b"1"]),
        (b"\n\ndata: \xef\xbb\xbf1\n\n", [b"\xef\xbb\xbf1"]),
        (b": hi\r\n\r\ndata:1\r\nevent: x\r\ndata: 2\r\n\r\n", [b"1\n2"]),
    ],
)
def test_events(sent: bytes, data: list[bytes]) -> None:
    for size in (1, len(sent)):
        reader = EventReader()
        pieces = [sent[start : start + size] for start in range(0, len(sent), size)]
        assert [event[1] for piece in pieces for event in reader.feed(piece)] == data and not reader.is_half


def texts(*pieces: str, reason: str = "") -> bytes:
    """Return the text of chunks, which are JSON."""
    found, half = b"", ""
    for number, piece in enumerate(pieces, 1):
        end = {"finish_reason": reason} if number == len(pieces) else {}
        chunk = json.loads(json.dumps({"choices": [{"text": piece, **end}]}))
        data, half, _ = read_chunk(chunk, half)
        found += data
    return found


def test_a_pair_of_surrogates_may_be_cut_between_chunks() -> None:
    assert texts("a\ud83d", "\ude00b") == texts("a", "\ud83d", "", "\ude00b") == "a\U0001f600b".encode()
    assert texts("\ufeffa\ud83d", reason="length") == texts("\ufeffa\ud83d", "", reason="length") == "\ufeffa".encode()
    for wrong in (("\ud83da",), ("\ud83d", "a"), ("\ude00",), ("\ud83d", "\ud83d", "\ude00")):
        with pytest.raises(UpstreamError, match="not UTF-8"):
            texts(*wrong)


@pytest.mark.parametrize("url", ["http://[::1", "http://[x]/", "http://a]b/", "http://\u2100.com/", "http://[::1]:x"])
def test_an_address_that_can_not_be_parsed_is_one_sentence(url: str) -> None:
    with pytest.raises(ConfigError, match="upstream can't be used"):
        base_of(url)


@pytest.mark.parametrize("host", ["x" * 64, "x" * 70_000, "a..b", ".", "a b", "a\0b", "\ud800"])
def test_a_host_that_no_resolver_takes_is_one_sentence(host: str) -> None:
    with pytest.raises(ConfigError, match="upstream can't be used"):
        base_of(f"http://{host}")


class Reply:
    """A refusal by something between a client and its daemon."""

    status = 429

    def __init__(self, wait: str) -> None:
        self.headers = {"retry-after": wait}

    async def json_object(self) -> dict[str, object]:
        return {}


@pytest.mark.parametrize(
    ("wait", "again"), [("3", 3.0), ("\u00b2", None), ("9" * 5000, 86_400.0), ("-1", None), ("Wed, 21 Oct", None)]
)
def test_when_to_ask_again(wait: str, again: float | None) -> None:
    error = asyncio.run(daemon_client._refusal(Reply(wait)))  # type: ignore[arg-type]
    assert error.retry_after == again


async def refuse(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(head("429 Too Many Requests", retry_after="9" * 5000))


def test_a_server_that_asks_to_wait_for_ages() -> None:
    async def wait(url: str) -> int:
        async with UpstreamClient(url) as client:
            with pytest.raises(UpstreamError) as raised:
                async for _ in client.chunks({"stream": True}):
                    pass
        return raised.value.retry_after

    with fake_server(behaviour=refuse) as server:
        assert asyncio.run(wait(server.url)) == MAX_RETRY_AFTER
