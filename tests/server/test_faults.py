"""An engine fault ends one request with one sentence; the others get their text, with nothing twice."""

from __future__ import annotations

import threading

import pytest

from codespec.errors import ModelError
from codespec.server.daemon import Loaded, Progress
from tests.server.daemons import serving, serving_load, wait_for
from tests.server.fakes import FakeEngine
from tests.server.test_jobs import PATH, Asking, body, ends_of, held, text_of, written


def test_a_failing_request_ends_alone() -> None:
    engine = FakeEngine()
    with serving(engine, slots=4) as served:
        asking = held(engine, served, *(body(name) for name in ("one", "BOOM", "two", "three", "four")))
        engine.gate.set()
        good = [asking[0], *asking[2:]]
        for one, name in zip(good, ("one", "two", "three", "four"), strict=True):
            assert text_of(one.result()) == written(name) and ends_of(one.result()) == ["length"]
        broken = asking[1].result()
        name, error = broken.events[-1]
        assert name == "error" and "RuntimeError" in error["message"] and "BOOM" not in broken.body.decode()[-200:]
        assert served.post(PATH, body("later")).status == 200
    assert engine.faults == ["BOOM", "BOOM"], "once with the others, once alone"


def test_rounds_are_told_once_in_spite_of_a_second_run() -> None:
    engine = FakeEngine()
    with serving(engine) as served:
        asking = held(engine, served, body("BOOM"), body("good"))
        engine.gate.set()
        events = asking[1].result().events
    assert [name for name, _ in events].count("round") == [name for name, _ in events].count("text") == 20


@pytest.mark.parametrize(("prefix", "status"), [("REFUSED", 400), ("UNTAKEN", 500)])
def test_a_request_that_is_not_taken(prefix: str, status: int) -> None:
    with serving(FakeEngine()) as served:
        reply = served.post(PATH, body(prefix))
        assert reply.status == status and "in a message" not in reply.body.decode()
        assert reply.json["error"]["field"] == ("prefix" if status == 400 else "")
        assert served.post(PATH, body("next")).status == 200


def test_the_field_is_named_as_the_client_names_it() -> None:
    with serving(FakeEngine()) as served:
        for path, values, field in (
            ("/infill", {"input_prefix": "REFUSED"}, "input_prefix"),
            ("/completion", {"prompt": "REFUSED"}, "prompt"),
            ("/v1/completions", {"prompt": "REFUSED"}, "prompt"),
            ("/v1/completions", {"segments": {"prefix": "REFUSED"}}, "segments.prefix"),
            ("/v1/fim/completions", {"prompt": "REFUSED"}, "prompt"),
        ):
            error = served.post(path, values).json["error"]
            assert error["field"] == error["param"] == field and error["message"].startswith(f"{field} must")


class Loading:
    """Loads or fails on request."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go = threading.Event()
        self.error = error

    def __call__(self, progress: Progress) -> Loaded:
        progress.phase = "loading the models"
        self.go.wait(20)
        if self.error:
            raise self.error
        return Loaded.of(FakeEngine(), "toy", 512, 4)  # type: ignore[arg-type]


def test_it_listens_before_it_is_ready() -> None:
    load = Loading()
    with serving_load(load, ready=False) as served:
        for reply in (served.ask("GET", "/health"), served.post(PATH, body("x")), served.ask("GET", "/v1/health")):
            assert reply.status == 503 and int(reply.headers["Retry-After"]) >= 1
            assert "starting (loading the models" in reply.json["error"]["message"]
            assert reply.json["error"]["state"] == "starting"
        load.go.set()
        assert wait_for(lambda: served.ask("GET", "/health").status == 200)
        assert served.post(PATH, body("x")).status == 200


@pytest.mark.parametrize("error", [ModelError("x is broken: mend it"), RuntimeError("secret")])
def test_models_that_do_not_load(error: Exception) -> None:
    load = Loading(error)
    with serving_load(load, ready=False) as served:
        load.go.set()
        assert wait_for(lambda: served.source.state == "failed")
        reply = served.post(PATH, body("x"))
        assert reply.status == 503 and "secret" not in reply.body.decode()


def test_a_broken_engine_answers_everybody() -> None:
    """Even if cancellation fails, no request hangs."""
    engine = FakeEngine()

    def broken(sequence: object, reason: str) -> None:
        raise OSError("no")

    with serving(engine) as served:
        engine.queue.finish = broken
        asking = held(engine, served, body("BOOM"), body("good"))
        engine.gate.set()
        for one in asking:
            assert one.result().events[-1][0] == "error"
        reply = served.post(PATH, body("later"))
        assert reply.status == 503 and "restart" in reply.json["error"]["message"]


def test_stopping_lets_open_requests_finish_and_takes_no_more() -> None:
    engine = FakeEngine(pause=0.01)
    with serving(engine) as served:
        asking = Asking(served, PATH, body("open", max_tokens=60))
        assert wait_for(lambda: engine.steps > 2)
        served.daemon.stopping = True
        assert served.post(PATH, body("late")).status == 503
    assert ends_of(asking.result()) == ["length"] and engine.closed
