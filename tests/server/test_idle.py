"""Idle models are freed and come back with the next request for text; questions about the daemon leave it idle."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from codespec.api.config import EDITOR_IDLE_UNLOAD, ServeConfig, resolve_serve
from codespec.api.settings import Settings
from codespec.api.types import CompletionRequest
from codespec.errors import ConfigError, ModelError
from codespec.server.app import stop_unused
from codespec.server.daemon import Daemon, Loaded, Progress
from codespec.server.engine_thread import EngineThread
from tests.pairs import build, model, prompts
from tests.server.daemons import Served, serving_source, wait_for
from tests.server.fakes import FakeEngine
from tests.server.test_jobs import PATH, Asking, body, ends_of, text_of, written
from tests.server.test_metrics import Scrape

QUESTIONS = ("/health", "/ready", "/metrics", "/v1/codespec/stats", "/props", "/v1/models", "/api/tags", "/api/ps")


class Loader:
    """Loads a new engine each time: the first at once, later ones while `go` is set."""

    def __init__(self) -> None:
        self.engines: list[weakref.ref[Any]] = []
        self.submitted: list[CompletionRequest] = []  # to the newest engine, which may be freed at any time
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()
        self.error: Exception | None = None

    def __call__(self, progress: Progress) -> Loaded:
        progress.phase = "loading the models"
        if self.engines:
            self.begun.set()
            self.go.wait(60)
            if self.error:
                raise self.error
        engine = self.make()
        self.engines.append(weakref.ref(engine))
        self.submitted = getattr(engine, "submitted", [])
        return Loaded.of(engine, "toy", 512, 4)

    def make(self) -> Any:
        """Return a new engine."""
        return FakeEngine()

    @property
    def newest(self) -> FakeEngine:
        """The engine that was loaded last."""
        engine = self.engines[-1]()
        assert isinstance(engine, FakeEngine)
        return engine


@contextmanager
def resting(load: Loader, idle_unload: float = 0.02) -> Iterator[Served]:
    """Run a daemon and yield it when it is idle."""
    with serving_source(EngineThread(load, idle_unload)) as served:  # type: ignore[arg-type]
        until_idle(served)
        yield served


def until_idle(served: Served) -> None:
    assert wait_for(lambda: served.source.state == "idle")


def test_an_idle_engine_is_freed_and_the_next_request_loads_another() -> None:
    load = Loader()
    with resting(load) as served:
        assert wait_for(lambda: load.engines[0]() is None)
        reply = served.post(PATH, body("abc"))
        assert (text_of(reply), ends_of(reply), len(load.engines)) == (written("abc"), ["length"], 2)
        until_idle(served)
        assert wait_for(lambda: load.engines[1]() is None)


def test_without_the_setting_it_stays() -> None:
    load = Loader()
    with serving_source(EngineThread(load)) as served:  # type: ignore[arg-type]
        served.post(PATH, body("abc"))
        time.sleep(0.1)
        assert served.source.state == "ready" and load.engines[0]() is not None


def test_questions_neither_load_the_models_nor_keep_them() -> None:
    load = Loader()
    with resting(load) as served:
        for path in QUESTIONS:
            assert served.ask("GET", path).status == 200, path
        assert served.post("/tokenize", {"content": "abc"}).json["tokens"]
        assert served.source.state == "idle" and len(load.engines) == 1
        about = served.ask("GET", "/v1/codespec/stats").json["daemon"]
        assert (about["state"], about["reason"], about["model"]) == ("idle", "models freed", "toy")
        assert Scrape(served).of("state", "state") == {"idle": 1}
        assert served.ask("GET", "/health").json["idle"] is True
        assert served.ask("GET", "/api/ps").json["models"] == [], "nothing is in memory"
        served.post(PATH, body("abc"))
        asked, stop = time.monotonic(), threading.Event()
        polling = threading.Thread(target=poll, args=(served, stop), daemon=True)
        polling.start()
        until_idle(served)
        stop.set()
        polling.join()  # its connection must not outlive the daemon
        assert len(load.engines) == 2 and time.monotonic() > asked


def poll(served: Served, stop: threading.Event) -> None:
    while not stop.is_set():
        served.ask("GET", "/health")


def test_requests_that_arrive_while_it_loads_wait_and_a_cancelled_one_is_dropped() -> None:
    load = Loader()
    with resting(load) as served:
        load.go.clear()
        left = served.open(PATH, body("left"))
        assert load.begun.wait(60)
        stays = [Asking(served, PATH, body(name)) for name in ("one", "two")]
        assert wait_for(lambda: served.daemon.num_open == 3)
        about = served.ask("GET", "/v1/codespec/stats").json["daemon"]
        assert (about["state"], about["reason"]) == ("idle", "loading the models")
        assert len(load.engines) == 1, "one load serves all"
        left.close()
        assert wait_for(lambda: served.daemon.num_open == 2)
        load.go.set()
        assert [text_of(one.result()) for one in stays] == [written("one"), written("two")]
        assert len(load.engines) == 2
        assert sorted(request.prefix for request in load.submitted) == ["one", "two"]


def test_a_newer_request_for_the_document_replaces_one_that_waits() -> None:
    load = Loader()
    with resting(load) as served:
        load.go.clear()
        older = Asking(served, PATH, body("old", document="a.py"))
        assert load.begun.wait(60) and wait_for(lambda: served.daemon.num_open == 1)
        newer = Asking(served, PATH, body("new", document="a.py"))
        assert wait_for(lambda: served.daemon.num_open == 2)
        load.go.set()
        assert ends_of(older.result()) == ["cancelled"] and text_of(newer.result()) == written("new")


def test_files_are_kept_by_the_engine_that_comes_back() -> None:
    load = Loader()
    with resting(load, 0.3) as served:
        files = {"document": "a.py", "files": [{"path": "b.py", "text": "b = 1\n"}]}
        assert served.post("/v1/codespec/files", files).json["files"] == 1
        assert [*load.newest.files.values()] == [(b"b = 1\n",)]


def test_an_empty_prompt_of_ollama_loads() -> None:
    load = Loader()
    with resting(load, 0.3) as served:
        assert served.post("/api/generate", {"model": "toy", "prompt": ""}).json["done_reason"] == "load"
        assert len(load.engines) == 2


def test_counters_go_on() -> None:
    load = Loader()
    with resting(load) as served:
        served.post(PATH, body("abc"))
        before = Scrape(served).by("requests_total", "kind")
        until_idle(served)
        assert Scrape(served).by("requests_total", "kind") == before
        first = served.source.loaded
        served.post(PATH, body("abc"))
        assert first is not None and served.source.loaded is not None
        assert served.source.loaded.metrics is first.metrics


def test_models_that_do_not_come_back_end_it_with_their_reason() -> None:
    load = Loader()
    with resting(load) as served:
        load.error = ModelError("x is gone: pull it")
        reply = served.post(PATH, body("abc"))
        assert reply.status == 503 and reply.json["error"]["message"] == "x is gone: pull it."
        assert served.source.state == "failed" and served.ask("GET", "/health").status == 503


@pytest.mark.parametrize("loads", [False, True])
def test_it_stops_while_idle_and_while_it_loads(loads: bool) -> None:
    load = Loader()
    with resting(load) as served:
        if loads:
            load.go.clear()
            asking = Asking(served, PATH, body("abc"))
            assert load.begun.wait(60)
            threading.Timer(0.1, load.go.set).start()
    assert served.source.state == "stopped"
    assert not loads or asking.result().status in (200, 503)


def test_texts_are_the_same_before_and_after_and_with_and_without_speculation() -> None:
    class Real(Loader):
        def make(self) -> Any:
            target, drafter = model("llama", "gpt2", twin=70), model("gpt_neox", "bytes", seed=1, twin=70)
            return build(target, drafter=drafter, max_batch=4, draft_tokens=3, prefill_chunk=64)

    def texts(served: Served, speculate: bool) -> list[str]:
        asked = [body(prompt, max_tokens=12, speculate=speculate) for prompt in prompts(2)]
        return [text_of(served.post(PATH, one)) for one in asked]

    load = Real()
    with serving_source(EngineThread(load, 0.4)) as served:  # type: ignore[arg-type]
        before = texts(served, True)
        until_idle(served)
        assert texts(served, True) == before == texts(served, False)
        assert len(load.engines) >= 2 and any(before)


def test_an_unused_daemon_ends_and_a_used_one_does_not() -> None:
    async def scenario() -> None:
        daemon, stop = Daemon(EngineThread(Loader()), 4), asyncio.Event()  # type: ignore[arg-type]
        used = asyncio.create_task(stop_unused(daemon, 3600, stop))
        await asyncio.sleep(0.05)
        assert not stop.is_set() and not used.done()
        used.cancel()
        daemon.last_used -= 3601
        await stop_unused(daemon, 3600, stop)
        assert stop.is_set()

    asyncio.run(scenario())


def test_only_requests_for_text_count_as_use() -> None:
    load = Loader()
    with resting(load) as served:
        began = served.daemon.last_used
        for path in QUESTIONS:
            served.ask("GET", path)
        assert served.daemon.last_used == began
        served.post(PATH, body("abc"))
        assert served.daemon.last_used > began


def test_the_default_depends_on_who_starts_it() -> None:
    assert resolve_serve({}, Settings(environment={})).idle_unload == 0
    assert resolve_serve({}, Settings(environment={}), on_demand=True).idle_unload == EDITOR_IDLE_UNLOAD
    assert resolve_serve({}, Settings(environment={"CODESPEC_SERVE_IDLE_UNLOAD": "0"}), on_demand=True).idle_unload == 0
    assert resolve_serve({"idle_unload": 2.5}, Settings(environment={})).idle_unload == 2.5


@pytest.mark.parametrize(
    ("value", "words"),
    [(-1.0, "is too small"), (float("nan"), "is too small"), (float("inf"), "is too large"), ("soon", "a number")],
)
def test_bad_values(value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=f"(?i)idle_unload.*{words}"):
        if isinstance(value, float):
            ServeConfig(idle_unload=value)
        else:
            resolve_serve({}, Settings(environment={"CODESPEC_SERVE_IDLE_UNLOAD": str(value)}))
