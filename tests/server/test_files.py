"""Files that a client sends for lookup bring drafts to its document, never other text, and only to that client."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from codespec.api.types import Owner
from codespec.server import engine_thread
from tests.server.daemons import Answer, Served, serving, wait_for
from tests.server.fakes import FakeEngine

FILES, COMPLETE = "/v1/codespec/files", "/v1/codespec/complete"
PREFIX = "import unittest\n\nclass TestShelf(unittest.TestCase):\n    def test_empty_shelf(self):\n"


def complete(toy: Served, document: str, key: str, **more: Any) -> tuple[str, int]:
    """Return the text and the number of its copied tokens. One key's text is no source for another's."""
    body = {"document": document, "path": "a.py", "prefix": PREFIX, "max_tokens": 16, "shape": "raw", **more}
    reply = toy.post(COMPLETE, body, **{"X-Api-Key": key})
    assert reply.status == 200, reply.body
    text = "".join(data["text"] for name, data in reply.events if name == "text")
    done = next(data for name, data in reply.events if name == "done")
    return text, done["stats"]["by_source"].get("suffix", {}).get("accepted", 0)


def send(toy: Served, document: str, key: str, *texts: str) -> Answer:
    files = [{"path": "b.py", "text": text} for text in texts]
    return toy.post(FILES, {"document": document, "files": files}, **{"X-Api-Key": key})


def test_files_bring_drafts_and_never_other_text(toy: Served) -> None:
    plain, _ = complete(toy, "mine", "plain", speculate=False)
    written = (PREFIX + plain).split("class ", 1)[1]
    without = complete(toy, "mine", "without")
    reply = send(toy, "mine", "with", "x = 1\n", f"class {written}\n")
    assert (reply.status, reply.json) == (200, {"files": 2, "bytes": len(f"class {written}\n".encode()) + 6})
    found = complete(toy, "mine", "with")
    assert found[0] == without[0] == plain and found[1] > without[1]


def test_files_are_of_one_document_and_client_and_can_be_forgotten(toy: Served) -> None:
    plain, _ = complete(toy, "mine", "plain", speculate=False)
    written = (PREFIX + plain).split("class ", 1)[1]
    least = complete(toy, "mine", "nobody")[1]
    for key in ("one", "two", "three"):
        send(toy, "mine", key, f"class {written}\n")
    assert complete(toy, "other", "one") == (plain, least)
    assert send(toy, "mine", "two").json == {"files": 0, "bytes": 0}
    assert complete(toy, "mine", "two") == (plain, least)
    assert complete(toy, "mine", "three")[1] > least


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"files": []}, "document is missing"),
        ({"document": "", "files": []}, "document must not be empty"),
        ({"document": "a", "files": [{"path": "id_rsa", "text": "x"}]}, "may hold secrets"),
        ({"document": "a", "files": [{"path": "b.py", "text": "x" * 65_537}]}, "at most 65536 characters"),
        (
            {"document": "a", "files": [{"path": "b.py", "text": "x" * 65_536}] * 9},
            "at most 524288 characters in total",
        ),
        ({"document": "a", "files": [{"path": "b.py", "text": ""}] * 65}, "at most 64 objects"),
        ({"document": "a", "files": [{"path": "b.py", "text": "\ud800"}]}, "lone surrogates"),
        ({"document": "a", "file": []}, "file is unknown"),
        ({"document": "a", "": []}, '"" is unknown'),
    ],
)
def test_bad_files(toy: Served, body: dict[str, Any], words: str) -> None:
    reply = toy.post(FILES, body)
    assert reply.status == 400 and words in reply.json["error"]["message"]


class SlowToKeep(FakeEngine):
    """Stores nothing until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.let, self.kept = threading.Event(), list[str]()

    def look_up_in(self, owner: Owner, texts: list[bytes]) -> None:
        self.kept.append(owner.document)
        assert self.let.wait(60)


def test_files_that_still_wait_when_the_daemon_stops_are_refused_and_not_kept() -> None:
    engine = SlowToKeep()
    with serving(engine) as served, ThreadPoolExecutor(2) as pool:
        first = pool.submit(send, served, "first", "a", "x")
        assert wait_for(lambda: engine.kept == ["first"])
        second = pool.submit(send, served, "second", "a", "x")
        assert wait_for(lambda: len(served.source.queue._put) == 1)
        served.daemon.stopping = True
        engine.let.set()
        assert first.result(60).status == 200 and second.result(60).status == 503
        assert "is stopping" in second.result().json["error"]["message"]
        served.daemon.stopping = False
    assert engine.kept == ["first"]


def test_only_so_many_wait_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_thread, "MAX_CALLS", 1)
    engine = SlowToKeep()
    with serving(engine) as served, ThreadPoolExecutor(1) as pool:
        first = pool.submit(send, served, "first", "a", "x")
        assert wait_for(lambda: engine.kept == ["first"])
        refused = send(served, "second", "a", "x")
        engine.let.set()
        assert refused.status == 429 and "try again in a moment" in refused.json["error"]["message"]
        assert first.result(60).status == 200
    assert engine.kept == ["first"]


class Panic(BaseException):
    """As tokenizers and other libraries in Rust raise it."""


class Panicking(FakeEngine):
    def look_up_in(self, owner: Owner, texts: list[bytes]) -> None:
        raise Panic("source text")


def test_a_panic_in_a_call_is_the_callers_alone() -> None:
    with serving(Panicking()) as served:
        reply = send(served, "first", "a", "x")
        assert reply.status == 500 and "(Panic)" in reply.json["error"]["message"]
        assert served.post("/v1/codespec/complete", {"prefix": "ab", "max_tokens": 2}).status == 200
