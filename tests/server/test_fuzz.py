"""Random bodies, headers and paths: never a 5xx, always a reply, and each error names the field."""

from __future__ import annotations

import http.client
import json
import random
from typing import Any

import pytest

from codespec.server.app import build_app
from codespec.server.daemon import Daemon
from codespec.server.engine_thread import EngineThread
from tests.server.daemons import SECONDS, Served, serving
from tests.server.fakes import FakeEngine
from tests.server.talkers import chat_tokenizer

COUNT = 500
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 10**30, 1.5, 1e308, "", "x", "\n", "\ud800", "\0", [], [1], ["a"], [[]], {}),
    *({"a": 1}, "a" * 300, "é\U0001f600", [{}], [{"text": "t"}], [{"path": ".env", "text": "t"}], "<|fim_prefix|>"),
    *(
        [1, 2, 3],
        [[1], [2, 3]],
        [10**9],
        ["a", "b"],
        [True],
        [{"role": "user", "content": "hi"}],
        {"include_usage": True},
    ),
    {"type": "content", "content": "x"},
    *([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], [{"role": "x", "content": 1}], {"type": "text"}),
]
NAMES = (
    *("prefix", "suffix", "prompt", "input_prefix", "input_suffix", "input_extra", "snippets", "segments", "n", "stop"),
    *("max_tokens", "n_predict", "temperature", "top_p", "top_k", "seed", "stream", "options", "model", "document"),
    *("logprobs", "debug_options", "response_fields", "n_cmpl", "t_max_predict_ms", "deadline_ms", "cursor", "shape"),
    *("stream_options", "content", "type", "language", "mode", "version", "min_p", "echo", "best_of", "warm_up"),
    *("messages", "top_logprobs", "max_completion_tokens", "prefix_offset", "speculate", "tokens", "tools", "system"),
    *("response_format", "raw", "images", "path", "trigger", "user", "logit_bias", "repeat_penalty", "add_special"),
    *("prediction", "draft", "text", "places", "history", "diagnostics", "first_row", "original"),
    *("file_path", "file_contents", "cursor_position", "recent_changes", "file_chunks", "editor_diagnostics"),
)
CHAT = [{"role": "user", "content": "hi"}]
REQUIRED = {
    "prefix": "p",
    "prompt": "p",
    "segments": {"prefix": "p"},
    "content": "c",
    "messages": CHAT,
    "tokens": [1],
}
EDIT = {"path": "a.py", "text": "a\nb\n", "places": [1]}
OWN = {"codespec": {"prefix": "p"}, "edit": EDIT, "other": {**REQUIRED, "file_path": "a.py", "file_contents": "a\nb\n"}}


def all_paths() -> list[str]:
    """Return every route of the daemon, with odd names for its parameters, and some unknown routes."""
    app = build_app(Daemon(EngineThread(lambda _: pytest.fail("nothing is loaded")), 0))
    routes = sorted({resource.canonical for resource in app.router.resources()})
    named = [route.replace("{name}", name) for route in routes for name in ("x", "..", "%00", "%2e%2e%2fpage.py")]
    return [*dict.fromkeys(named), "/nowhere", "/v1/completions/..", "/%00", "//", "/metrics?name=x", "/?x=%ff"]


PATHS = all_paths()
ASKED = [
    path
    for path in PATHS
    if path.endswith(("complete", "completion", "completions", "fill", "generate", "kenize", "edit"))
]
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
    """Return a mostly valid body with some wrong fields, sometimes invalid JSON."""
    body: Any = {name: dice.choice(VALUES) for name in dice.sample(NAMES, dice.randrange(6))}
    if dice.random() < 0.8:
        body = {**OWN[dice.choice(sorted(OWN))], **body}
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
    """Assert no 5xx; a 4xx from codespec is one sentence with the field's name."""
    assert status < 500, body
    if not status >= 400 or not body.startswith(b"{"):
        return  # the HTTP parser's own errors are plain text
    message = json.loads(body)
    error = (
        message["error"]
        if isinstance(message["error"], dict)
        else {"message": message["error"], "field": message["field"]}
    )
    assert error["field"] and error["field"] in error["message"], body
    assert "\n" not in error["message"] and "Traceback" not in error["message"]


@pytest.mark.parametrize("real", [True, False], ids=["engine", "fake"])
def test_random_requests(real: bool, toy: Served) -> None:
    if real:
        statuses = fuzz(toy, 60, seed=1)
    else:
        with serving(talking_engine(), slots=8, edit_format="sweep-card") as served:
            statuses = fuzz(served, COUNT - 60, seed=2)
    assert {200, 400} <= set(statuses)


def talking_engine() -> FakeEngine:
    """Return a fake engine whose model has a chat template."""
    engine = FakeEngine()
    engine.target.tokenizer = chat_tokenizer()
    return engine


def test_all_routes_are_tried() -> None:
    assert {"/", "/metrics", "/v1/chat/completions", "/v1/codespec/complete", "/api/show", "/page/x"} <= set(PATHS)
    assert len(ASKED) >= 8


def fuzz(served: Served, count: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    statuses = []
    for number in range(count):
        method = dice.choice(["POST"] * 12 + ["GET", "PUT", "OPTIONS", "HEAD"])
        path = dice.choice(ASKED if dice.random() < 0.7 else PATHS)
        data, headers = random_body(dice), random_headers(dice)
        status, body = exchange(served, method, path, data, headers)
        try:
            check(status, body)
        except (AssertionError, ValueError, KeyError) as error:
            raise AssertionError(f"request {number}: {method} {path} {data[:300]!r} {headers} → {status}") from error
        statuses.append(status)
    assert served.idle()
    return statuses
