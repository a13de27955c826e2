"""Replacing an engine that writes one character a step: who is answered by which, who waits, and what is freed."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from codespec.contract.types import Stats
from codespec.errors import ConfigError, ModelError
from codespec.proof import PATH as PROOF
from codespec.server.loading import Loaded, Progress
from codespec.server.reload import Plan
from tests.cli.processes import TOKEN
from tests.server.daemons import Served, serving_load, wait_for
from tests.server.fakes import FakeEngine
from tests.server.test_jobs import PATH, body, text_of

RELOAD = "/v1/codespec/reload"
OWN = {"Authorization": f"Bearer {TOKEN}"}


class Second(FakeEngine):
    """Another model: it writes in capitals."""

    def submit(self, request: Any) -> Any:
        from dataclasses import replace

        return super().submit(replace(request, prefix=request.prefix.upper()))


class Models:
    """The engines of one daemon by name; `begin` blocks a load until it is set."""

    def __init__(self, fits: bool) -> None:
        self.fits, self.begin = fits, threading.Event()
        self.begin.set()
        self.loads: list[str] = []
        self.first = FakeEngine(pause=0.005)
        self.broken: set[str] = set()

    def plan(self, changes: Mapping[str, Any]) -> Plan:
        name = changes.get("model", "first")
        if name == "unknown":
            raise ConfigError("There is no model unknown", "choose another")
        return Plan(lambda _: self.load(name), self.fits)

    def load(self, name: str, _: Progress | None = None) -> Loaded:
        self.begin.wait(60)
        self.loads.append(name)
        if name in self.broken:
            raise ModelError("config.json is missing", "choose another folder")
        engine: Any = self.first if len(self.loads) == 1 else FakeEngine() if name == "first" else Second()
        return Loaded(engine, name, 512, 4)


@contextmanager
def reloading(fits: bool = True, queue: int = 64, patience: float = 30.0) -> Iterator[tuple[Served, Models]]:
    models = Models(fits)
    load = lambda _: models.load("first")  # noqa: E731
    with serving_load(load, queue, token=TOKEN, plan=models.plan, patience=patience) as served:
        yield served, models


def ask(served: Served, prefix: str = "abc", **more: Any) -> str:
    reply = served.post(PATH, body(prefix, max_tokens=6, **more), **OWN)
    assert reply.status == 200, reply.body
    return text_of(reply)


def test_a_stream_ends_with_its_engine_while_others_use_the_new_one() -> None:
    with reloading() as (served, models):
        gone = weakref.ref(models.first)
        stream = served.open_as(PATH, body("abc", max_tokens=400), OWN)
        reply = stream.getresponse()
        first = reply.read1(40)
        assert served.post(RELOAD, {"model": "second"}, **OWN).json["target"] == "second"
        assert ask(served) == "CBACBA" and first
        assert served.daemon.num_open == 1, "the first stream goes on"
        text = (first + reply.read()).decode()
        assert '"finish_reason":"length"' in text and '"text":"A"' not in text
        stream.close()
        models.first = None  # type: ignore[assignment]
        assert wait_for(lambda: gone() is None, 20), "its memory is free"
        assert served.daemon.sources == [served.daemon.current]


def test_without_room_for_both_requests_wait_for_the_new_one() -> None:
    with reloading(fits=False, queue=3) as (served, models):
        stream = served.open_as(PATH, body("abc", max_tokens=100), OWN)
        reply = stream.getresponse()
        assert reply.read1(40)
        models.begin.clear()
        asked = served.open_as(RELOAD, {"model": "second"}, OWN)
        assert wait_for(lambda: served.daemon.held is not None)
        waiting = [served.open_as(PATH, body(f"abc{n}", max_tokens=6), OWN) for n in range(3)]
        assert b'"finish_reason":"length"' in reply.read(), "the old stream is finished first"
        assert wait_for(lambda: served.daemon.incoming is not None)
        assert served.ask("GET", "/ready").status == 503 and served.ask("GET", "/health").status == 200
        assert served.ask("GET", "/health", **OWN).json["error"]["state"] == "starting"
        assert served.post(PROOF, {"nonce": "0" * 64}).status == 200, "the proof needs no model"
        began = time.monotonic()
        late = served.post(PATH, body("abc", deadline_ms=50), **OWN)
        assert late.status in (429, 503) and time.monotonic() - began < 5
        assert served.post(PATH, body("abc"), **OWN).status == 429, "as many wait as the queue takes"
        models.begin.set()
        assert asked.getresponse().status == 200
        replies = [one.getresponse() for one in waiting]
        assert [one.status for one in replies] == [200] * 3 and b'"text":"B"' in replies[0].read()
        for one in (stream, asked, *waiting):
            one.close()


@pytest.mark.parametrize("fits", [True, False])
def test_the_new_engine_copies_from_the_same_files(fits: bool) -> None:
    with reloading(fits=fits) as (served, _):
        files = {"document": "a.py", "files": [{"path": "b.py", "text": "x = 1"}, {"path": "c.py", "text": "y = 2"}]}
        assert served.post("/v1/codespec/files", files, **OWN).status == 200
        assert served.post(RELOAD, {"model": "second"}, **OWN).status == 200
        assert served.daemon.current.loaded is not None
        ((owner, texts),) = served.daemon.current.loaded.engine.files.items()
        assert owner.document == "a.py" and texts == (b"x = 1", b"y = 2")


def test_a_deadline_goes_on_while_a_request_waits() -> None:
    with reloading(fits=False) as (served, models):
        models.begin.clear()
        asked = served.open_as(RELOAD, {"model": "second"}, OWN)
        assert wait_for(lambda: served.daemon.incoming is not None)
        late = served.post(PATH, body("abc", deadline_ms=50), **OWN)
        assert late.status == 503 and "being replaced" in late.json["error"]["message"]
        assert late.headers["Retry-After"] == "1"
        models.begin.set()
        assert asked.getresponse().status == 200
        asked.close()
        assert ask(served) == "CBACBA"


@pytest.mark.parametrize("fits", [True, False])
def test_a_failure_keeps_the_old_model(fits: bool) -> None:
    with reloading(fits) as (served, models):
        models.broken.add("second")
        for name, why in (("second", "config.json is missing"), ("unknown", "There is no model unknown")):
            reply = served.post(RELOAD, {"model": name}, **OWN)
            assert reply.status == 400 and reply.json["error"]["field"] == "model"
            assert reply.json["error"]["message"].startswith(f"The old model is kept ({why}): choose another")
            assert ask(served) == "cbacba" and served.daemon.state == "ready"
        assert served.post(RELOAD, {"model": "third"}, **OWN).status == 200 and ask(served) == "CBACBA"


def test_what_does_not_end_in_time_keeps_the_old_model() -> None:
    with reloading(fits=False, patience=0.2) as (served, models):
        models.first.gate.clear()
        stream = served.open_as(PATH, body("abc"), OWN)
        assert models.first.entered.wait(20)
        reply = served.post(RELOAD, {"model": "second"}, **OWN)
        assert reply.status == 503 and "the old model is kept" in reply.json["error"]["message"]
        models.first.gate.set()
        assert stream.getresponse().status == 200 and ask(served) == "cbacba"
        stream.close()


def test_if_the_old_one_does_not_load_again_the_daemon_has_failed() -> None:
    with reloading(fits=False) as (served, models):
        failing = asyncio.run_coroutine_threadsafe(served.daemon.until_failed(), served.loop)
        models.broken |= {"first", "second"}
        assert served.post(RELOAD, {"model": "second"}, **OWN).status == 400
        with pytest.raises(ModelError, match="config"):
            failing.result(20)


def test_who_asked_may_leave_and_two_do_not_reload_at_once() -> None:
    with reloading() as (served, models):
        models.begin.clear()
        asked = served.open_as(RELOAD, {"model": "second"}, OWN)
        assert wait_for(lambda: served.daemon.incoming is not None)
        assert served.post(RELOAD, {}, **OWN).status == 409
        asked.close()
        assert ask(served) == "cbacba"
        models.begin.set()
        assert wait_for(lambda: ask(served) == "CBACBA")


def test_usage_goes_on_over_a_reload() -> None:
    with reloading() as (served, _):
        ask(served)
        assert served.post(RELOAD, {"model": "second"}, **OWN).status == 200
        ask(served)
        assert served.idle() and served.daemon.metrics.completions["length"] == 2
        assert isinstance(served.daemon.source.loaded.engine.metrics.totals, Stats)  # type: ignore[union-attr]
