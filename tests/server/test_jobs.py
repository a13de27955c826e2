"""Order, sharing and cancellation of requests, on an engine with visible steps."""

from __future__ import annotations

import threading

import pytest

from codespec.api.types import CompletionRequest
from tests.server.daemons import SECONDS, Answer, Served, serving, wait_for
from tests.server.fakes import FakeEngine, answer

PATH = "/v1/codespec/complete"


def body(prefix: str, **more: object) -> dict[str, object]:
    return {"prefix": prefix, "max_tokens": 20, "shape": "raw", **more}


def text_of(reply: Answer, choice: int = 0) -> str:
    return "".join(data["text"] for name, data in reply.events if name == "text" and data["choice"] == choice)


def ends_of(reply: Answer) -> list[str]:
    return [data["finish_reason"] for name, data in reply.events if name == "done"]


def written(prefix: str) -> str:
    """Return the engine's text for `body(prefix)`."""
    return answer(CompletionRequest(prefix=prefix, max_tokens=20))


class Asking(threading.Thread):
    """A request in a thread."""

    def __init__(self, served: Served, path: str, values: object, **headers: str) -> None:
        super().__init__(daemon=True)
        self.arguments = (served, path, values)
        self.headers = headers
        self.start()

    def run(self) -> None:
        served, path, values = self.arguments
        self.reply = served.post(path, values, **self.headers)

    def result(self) -> Answer:
        self.join(SECONDS)
        return self.reply


def held(engine: FakeEngine, served: Served, *bodies: dict[str, object], path: str = PATH) -> list[Asking]:
    """Send requests one after another while the engine is blocked in its first step."""
    engine.gate.clear()
    if not served.daemon.num_open:
        engine.entered.clear()
    asking = []
    for count, values in enumerate(bodies, 1 + served.daemon.num_open):
        asking.append(Asking(served, path, values))
        assert wait_for(lambda count=count: served.daemon.num_open == count)  # type: ignore[misc]
        assert engine.entered.wait(10), "who comes next would be let in beside the first"
    return asking


def test_a_request_is_streamed_to_its_end() -> None:
    engine = FakeEngine()
    with serving(engine) as served:
        reply = served.post(PATH, body("abc", n=2))
    assert reply.status == 200 and reply.headers["Content-Type"].startswith("text/event-stream")
    for choice in (0, 1):
        assert text_of(reply, choice) == answer(engine.submitted[0])
    assert ends_of(reply) == ["length", "length"]
    done = next(data for name, data in reply.events if name == "done")
    assert done["stats"]["committed"] == 20 and (done["cached_tokens"], done["new_tokens"]) == (0, 3)
    assert engine.closed


def test_no_more_run_at_once_than_there_are_slots() -> None:
    engine = FakeEngine()
    with serving(engine, slots=3) as served:
        asking = held(engine, served, *(body(f"text {number}") for number in range(8)))
        engine.gate.set()
        for number, one in enumerate(asking):
            assert text_of(one.result()) == written(f"text {number}")
    assert engine.most == 3
    assert [request.prefix for request in engine.submitted] == [f"text {number}" for number in range(8)]


def test_identical_requests_are_computed_once() -> None:
    engine = FakeEngine()
    with serving(engine, slots=1) as served:
        asking = held(engine, served, body("other"), body("same"), body("same"), body("same"))
        engine.gate.set()
        assert {text_of(one.result()) for one in asking[1:]} == {written("same")}
    assert [request.prefix for request in engine.submitted] == ["other", "same"]


def test_what_is_identical_is_computed_for_each_key() -> None:
    """Sharing another client's computation would reveal that it exists."""
    engine = FakeEngine()
    with serving(engine, slots=1) as served:
        asking = held(engine, served, body("other"))
        for key in ("one", "two", "one"):
            asking.append(Asking(served, PATH, body("same"), Authorization=f"Bearer {key}"))
        assert wait_for(lambda: served.daemon.num_open == 4)
        engine.gate.set()
        assert {text_of(one.result()) for one in asking[1:]} == {written("same")}
    assert [request.prefix for request in engine.submitted] == ["other", "same", "same"]
    assert len({request.scope for request in engine.submitted}) == 3


def test_who_joins_late_gets_the_beginning_as_well() -> None:
    engine = FakeEngine(pause=0.01)
    with serving(engine) as served:
        first = Asking(served, PATH, body("same", max_tokens=60))
        assert wait_for(lambda: engine.steps > 10)
        late = served.post(PATH, body("same", max_tokens=60))
        assert late.body == first.result().body
    assert len(engine.submitted) == 1


def test_who_shares_may_leave_without_the_other() -> None:
    engine = FakeEngine(pause=0.005)
    with serving(engine) as served:
        leaving = served.open(PATH, body("same", max_tokens=100))
        assert wait_for(lambda: engine.steps > 3)
        staying = Asking(served, PATH, body("same", max_tokens=100))
        assert wait_for(lambda: served.daemon.num_open == 2)
        leaving.close()
        assert ends_of(staying.result()) == ["length"]


@pytest.mark.parametrize("waiting", [False, True])
def test_a_newer_request_of_a_document_ends_the_older(waiting: bool) -> None:
    engine = FakeEngine()
    with serving(engine, slots=1) as served:
        before = [body("blocker", max_tokens=5)] if waiting else []
        asking = held(engine, served, *before, body("old", document="a", max_tokens=400))
        newer = Asking(served, PATH, body("new", document="a"))
        other = Asking(served, PATH, body("old b", document="b"))
        assert wait_for(lambda: served.daemon.num_open == 3 + waiting)
        engine.gate.set()
        assert ends_of(asking[-1].result()) == ["cancelled"]
        assert ends_of(newer.result()) == ["length"] and ends_of(other.result()) == ["length"]
    if waiting:
        assert "old" not in [request.prefix for request in engine.submitted]
    assert engine.steps < 100


def test_the_same_request_of_the_same_document_goes_on() -> None:
    engine = FakeEngine()
    with serving(engine) as served:
        first, second = held(engine, served, body("x", document="a"), body("x", document="a"))
        engine.gate.set()
        assert ends_of(second.result()) == ["length"] and len(text_of(second.result())) == 20
        assert ends_of(first.result()) == ["cancelled"]
    assert len(engine.submitted) == 1


def test_a_closed_connection_stops_the_work_within_a_round() -> None:
    engine = FakeEngine(pause=0.02)
    with serving(engine) as served:
        connection = served.open(PATH, body("gone", max_tokens=500))
        assert wait_for(lambda: engine.steps > 2)
        connection.close()
        assert wait_for(lambda: not engine.running)
        assert engine.steps < 100 and served.idle()


def test_a_warm_up_gives_its_slot_to_a_fill_and_goes_on() -> None:
    engine = FakeEngine(pause=0.005)
    with serving(engine, slots=1) as served:
        warm = Asking(served, "/infill", {"input_prefix": "SLOW", "n_predict": 0})
        assert wait_for(lambda: engine.steps > 2)
        assert ends_of(served.post(PATH, body("fill"))) == ["length"]
        assert warm.result().status == 200 and warm.result().json["content"] == ""
    assert [request.prefix for request in engine.submitted] == ["SLOW", "fill"]


def test_a_warm_up_behind_a_fill_starts_last() -> None:
    engine = FakeEngine()
    with serving(engine, slots=4) as served:
        first = held(engine, served, body("first"))
        warm = held(engine, served, {"input_prefix": "warm", "n_predict": 0}, path="/infill")
        last = held(engine, served, body("last"))
        engine.gate.set()
        for one in (*first, *warm, *last):
            assert one.result().status == 200
    assert [request.prefix for request in engine.submitted] == ["first", "last", "warm"]


def test_a_full_queue_says_when_to_come_back() -> None:
    engine = FakeEngine()
    with serving(engine, slots=1, queue=2) as served:
        asking = held(engine, served, *(body(f"text {number}") for number in range(3)))
        refused = served.post(PATH, body("one more"))
        assert refused.status == 429 and int(refused.headers["Retry-After"]) >= 1
        assert "try again" in refused.json["error"]["message"]
        engine.gate.set()
        assert all(ends_of(one.result()) == ["length"] for one in asking)
        assert served.post(PATH, body("one more")).status == 200


def test_a_deadline_counts_while_waiting() -> None:
    engine = FakeEngine()
    with serving(engine, slots=1) as served:
        first, late = held(engine, served, body("first"), body("late", deadline_ms=30))
        threading.Event().wait(0.05)
        engine.gate.set()
        assert ends_of(first.result()) == ["length"]
        assert ends_of(late.result()) == ["deadline"] and text_of(late.result()) == ""
    assert len(engine.submitted) == 1


def test_a_limit_from_the_first_token_waits_for_a_line() -> None:
    engine = FakeEngine(pause=0.002)
    with serving(engine) as served:
        values = {"prompt": "\n" + "x" * 40, "n_predict": 200, "t_max_predict_ms": 1}
        cut = served.post("/completion", values).json
    assert cut["content"].startswith("x" * 40 + "\n") and len(cut["content"]) < 60
    assert cut["stop_type"] == "limit"
