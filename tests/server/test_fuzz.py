"""Random bodies, headers and paths: never a 5xx, never silence, and each complaint names the field."""

from __future__ import annotations

import http.client
import json
import random
from typing import Any

import pytest

from tests.server.daemons import SECONDS, Served, serving
from tests.server.fakes import FakeEngine

COUNT = 300
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 10**30, 1.5, 1e308, "", "x", "\n", "\ud800", "\0", [], [1], ["a"], [[]], {}),
    *({"a": 1}, "a" * 300, "é\U0001f600", [{}], [{"text": "t"}], [{"path": ".env", "text": "t"}], "<|fim_prefix|>"),
]
NAMES = (
    *("prefix", "suffix", "prompt", "input_prefix", "input_suffix", "input_extra", "snippets", "segments", "n", "stop"),
    *("max_tokens", "n_predict", "temperature", "top_p", "top_k", "seed", "stream", "options", "model", "document"),
    *("logprobs", "debug_options", "response_fields", "n_cmpl", "t_max_predict_ms", "deadline_ms", "cursor", "shape"),
    *("stream_options", "content", "type", "language", "mode", "version", "min_p", "echo", "best_of", "warm_up"),
)
REQUIRED = {"prefix": "p", "prompt": "p", "segments": {"prefix": "p"}, "content": "c"}
PATHS = (
    *("/v1/codespec/complete", "/infill", "/completion", "/v1/completions", "/v1/fim/completions", "/api/generate"),
    *("/tokenize", "/v1/events", "/health", "/v1/models", "/nowhere", "/v1/completions/..", "/%00"),
)
HEADERS: dict[str, list[str]] = {
    "Host": ["localhost", "evil.example", ""],
    "Origin": ["null", "https://evil.example"],
    "Content-Type": ["application/json", "text/plain", "multipart/form-data; boundary=x", "\xff", "a" * 300],
    "Content-Encoding": ["gzip", "br", "x"],
    "Authorization": ["Bearer x", "\xe9", ""],
    "Expect": ["100-continue", "200-ok"],
    "Range": ["bytes=0-1"],
    "Upgrade": ["websocket"],
    "Accept": ["text/html", "*/*;q=x"],
}


def random_body(dice: random.Random) -> bytes:
    """Valid more often than not, with some fields wrong; sometimes no JSON at all."""
    body: Any = {name: dice.choice(VALUES) for name in dice.sample(NAMES, dice.randrange(6))}
    if dice.random() < 0.8:
        wanted = dice.choice(["codespec", "other"])
        body = {**({"prefix": "p"} if wanted == "codespec" else REQUIRED), **body}
    if dice.random() < 0.1:
        body = dice.choice(VALUES)
    data = json.dumps(body).encode()
    if dice.random() < 0.15:
        place = dice.randrange(len(data))
        data = data[:place] + dice.randbytes(dice.randrange(4)) + data[place + dice.randrange(3) :]
    return (
        dice.choice([b"", b"[" * 50_000, b'{"seed": ' + b"9" * 5000 + b"}", b"NaN"]) if dice.random() < 0.05 else data
    )


def random_headers(dice: random.Random) -> dict[str, str]:
    names = dice.sample(sorted(HEADERS), dice.choice([0, 0, 0, 1, 2]))
    return {name: dice.choice(HEADERS[name]) for name in names}


def exchange(served: Served, method: str, path: str, data: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=SECONDS)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            connection.putheader(name, value.encode("latin-1"))
        connection.endheaders(data)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def check(status: int, body: bytes) -> None:
    """No 5xx; a 4xx of ours is one sentence with the field's name."""
    assert status < 500, body
    if not status >= 400 or not body.startswith(b"{"):
        return  # the parser's own refusals, of what is no HTTP, are plain text
    said = json.loads(body)
    error = said["error"] if isinstance(said["error"], dict) else {"message": said["error"], "field": said["field"]}
    assert error["field"] and error["field"] in error["message"], body
    assert "\n" not in error["message"] and "Traceback" not in error["message"]


@pytest.mark.parametrize("real", [True, False], ids=["engine", "fake"])
def test_random_requests(real: bool, toy: Served) -> None:
    if real:
        statuses = fuzz(toy, 60, seed=1)
    else:
        with serving(FakeEngine(), slots=8) as served:
            statuses = fuzz(served, COUNT - 60, seed=2)
    assert {200, 400} <= set(statuses)


def fuzz(served: Served, count: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    statuses = []
    for number in range(count):
        method = dice.choice(["POST"] * 12 + ["GET", "PUT", "OPTIONS", "HEAD"])
        path, data, headers = dice.choice(PATHS), random_body(dice), random_headers(dice)
        status, body = exchange(served, method, path, data, headers)
        try:
            check(status, body)
        except (AssertionError, ValueError, KeyError) as error:
            raise AssertionError(f"request {number}: {method} {path} {data[:300]!r} {headers} → {status}") from error
        statuses.append(status)
    assert served.idle()
    return statuses
