"""`POST /v1/codespec/edit` over the wire: edits as they converge, reasons, cancellation, bad input."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from codespec.api.types import CompletionRequest, FinishReason
from tests.server.daemons import Answer, serving, wait_for
from tests.server.fakes import FakeEngine
from tests.text.test_edit_prompt import tokenizer

PATH = "/v1/codespec/edit"
TEXT = "".join(f"row {number}\n" for number in range(30))
Write = Callable[[CompletionRequest], str]


def body(**more: Any) -> dict[str, Any]:
    return {"path": "a.py", "document": "mine", "text": TEXT, "places": [10], **more}


def ask(write: Write, sent: dict[str, Any], ends: FinishReason = "stop", form: str = "sweep-card") -> Answer:
    engine = FakeEngine(answer=write, ends=ends)
    engine.target.tokenizer = tokenizer("bytes")
    with serving(engine, context=4096, edit_format=form) as served:
        return served.post(PATH, sent)


def edits(reply: Answer) -> list[tuple[int, int, int, str]]:
    assert reply.status == 200, reply.body
    return [
        (data["place"], data["start_row"], data["end_row"], data["text"])
        for name, data in reply.events
        if name == "edit"
    ]


def ends_of(reply: Answer) -> list[tuple[int, bool, str]]:
    return [(data["place"], data["unchanged"], data["reason"]) for name, data in reply.events if name == "done"]


def repeat(request: CompletionRequest) -> str:
    return request.prediction


def test_changed_lines_are_edits_in_the_document_s_rows() -> None:
    reply = ask(lambda request: request.prediction.replace("row 12\n", "new 12\n"), body())
    assert edits(reply) == [(0, 12, 13, "new 12\n")] and ends_of(reply) == [(0, False, "")]
    done = reply.events[-1][1]
    assert (done["start_row"], done["end_row"]) == (0, 21) and done["stats"]["committed"] > 100
    later = ask(
        lambda request: request.prediction.replace("row 12\n", ""),
        body(first_row=100, places=[110], cursor={"row": 110, "column": 2}),
    )
    assert edits(later) == [(0, 112, 113, "")]


def test_an_edit_is_sent_before_the_answer_ends() -> None:
    reply = ask(lambda request: request.prediction.replace("row 12\n", "new 12\n"), body())
    assert [name for name, _ in reply.events] == ["edit", "done"]
    cut = ask(lambda request: request.prediction.replace("row 3\n", "new 3\n")[:60], body(), ends="length")
    assert edits(cut) == [(0, 3, 4, "new 3\n")] and "cut at max_tokens" in ends_of(cut)[0][2]


def test_an_untrained_model_s_answer_ends_with_the_window() -> None:
    def explain(request: CompletionRequest) -> str:
        return request.prediction.replace("row 12\n", "new 12\n") + "These lines " * 40

    written = ask(explain, body(), form="chat")
    assert edits(written) == [(0, 12, 13, "new 12\n")] and ends_of(written) == [(0, False, "")]
    stats = written.events[-1][1]["stats"]
    assert stats["committed"] == len("row 10\n" * 6), "up to the last row of the window"
    assert ends_of(ask(lambda request: request.prediction + "x" * 500, body(), form="chat")) == ends_of(
        ask(repeat, body())
    )
    trained = ask(explain, body())
    assert trained.events[-1][1]["stats"]["committed"] > 400


def test_lines_without_a_change_are_no_edit_with_its_reason() -> None:
    reply = ask(repeat, body())
    assert not edits(reply) and ends_of(reply) == [(0, True, "The model leaves these lines as they are.")]


def test_an_edit_takes_back_no_change_and_changes_no_white_space_alone() -> None:
    def history(row: int, old: str, new: str, path: str = "a.py") -> dict[str, Any]:
        return body(history=[{"path": path, "row": row, "old": old, "new": new}])

    def add(request: CompletionRequest) -> str:
        return request.prediction.replace("row 12\n", "debug()\nrow 12\n")

    deleted = ask(add, history(12, "debug()\n", ""))
    assert not edits(deleted) and ends_of(deleted) == [(0, False, "The model's edit would undo a recent change.")]
    written = ask(lambda request: request.prediction.replace("row 12\n", "old\n"), history(12, "old\n", "row 12\n"))
    assert not edits(written) and ends_of(written) == ends_of(deleted)
    removed = ask(lambda request: request.prediction.replace("row 12\n", ""), history(12, "", "row 12\n"))
    assert not edits(removed) and ends_of(removed) == ends_of(deleted)
    for elsewhere in (history(25, "debug()\n", ""), history(12, "debug()\n", "", path="b.py")):
        assert edits(ask(add, elsewhere)) == [(0, 12, 12, "debug()\n")]
    blank = ask(lambda request: request.prediction.replace("row 12\n", "row 12  \n\n"), body())
    assert not edits(blank) and ends_of(blank) == [(0, True, "The model leaves these lines as they are.")]
    both = ask(lambda request: add(request).replace("row 17\n", "row 17\n\n"), body())
    assert edits(both) == [(0, 12, 12, "debug()\n")]


@pytest.mark.parametrize(("ends", "why"), [("length", "max_tokens"), ("deadline", "deadline_ms")])
def test_an_answer_that_is_cut_before_it_converges_is_no_edit(ends: FinishReason, why: str) -> None:
    reply = ask(lambda request: "something else\n" * 5, body(), ends)
    assert not edits(reply) and why in ends_of(reply)[0][2]


def test_control_tokens_are_never_in_an_edit() -> None:
    reply = ask(lambda request: request.prediction.replace("row 12\n", "<|file_sep|>\n"), body())
    assert not edits(reply) and "<|file_sep|>" in ends_of(reply)[0][2]


def test_each_place_has_its_window_and_its_end() -> None:
    reply = ask(lambda request: request.prediction.replace("row 25\n", "x\n"), body(places=[2, 28]))
    assert edits(reply) == [(1, 25, 26, "x\n")]
    assert [(place, unchanged) for place, unchanged, _ in ends_of(reply)] == [(0, True), (1, False)]


def test_the_last_row_has_no_line_break() -> None:
    sent = body(text="a\nb\nc", places=[2])
    assert edits(ask(lambda request: "a\nb\nd\n", sent)) == [(0, 2, 3, "d")]
    assert edits(ask(lambda request: "a\nb\nc\nd\n", body(text="a\nb\nc\n", places=[2]))) == [(0, 3, 3, "d\n")]


def test_a_model_without_a_format_gives_its_reason() -> None:
    reply = ask(repeat, body(places=[1, 2]), form="auto")
    assert not edits(reply) and [place for place, _, _ in ends_of(reply)] == [0, 1]
    assert all("set edit_format to chat" in reason for _, _, reason in ends_of(reply))


@pytest.mark.parametrize(("form", "name"), [("auto", ""), ("sweep-card", "sweep-card")])
def test_stats_name_the_format(form: str, name: str) -> None:
    with serving(FakeEngine(), context=4096, edit_format=form) as served:
        assert served.ask("GET", "/v1/codespec/stats").json["daemon"]["edit_format"] == name


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (body(places=[31]), "places[0]"),
        (body(places=[5, 99]), "places[1]"),
        (body(first_row=5, places=[4]), "places[0]"),
        (body(places=[]), "places"),
        (body(places=[1, 2, 3, 4]), "places"),
        (body(places=["1"]), "places"),
        (body(places=[-1]), "places"),
        (body(places=[True]), "places"),
        (body(cursor={"row": 3, "column": 99}), "cursor.column"),
        (body(cursor={"row": 3}), "cursor.column"),
        (body(history=[{"path": ".env", "row": 0, "old": "", "new": "x\n"}]), "history[0].path"),
        (body(history=[{"path": "a", "row": 0, "old": "", "new": ""}] * 17), "history"),
        (body(history=[{"path": "a", "row": 0, "old": "", "new": "x" * 20_000}]), "history[0].new"),
        (body(snippets=[{"path": "id_rsa", "text": "x"}]), "snippets[0].path"),
        (body(text="x" * 200_000), "text"),
        (body(text="\ud800"), "text"),
        (body(max_tokens=0), "max_tokens"),
        (body(other=1), "other"),
        ({"path": "a.py", "text": "x"}, "places"),
    ],
)
def test_a_bad_field_is_named(sent: dict[str, Any], field: str) -> None:
    with serving(FakeEngine(), context=4096, edit_format="sweep-card") as served:
        reply = served.post(PATH, json.dumps(sent).encode())
        assert (reply.status, reply.json["error"]["field"]) == (400, field)


def read(connection: http.client.HTTPConnection) -> Answer:
    """Return the rest of a reply."""
    with closing(connection):
        reply = connection.getresponse()
        return Answer(reply.status, reply.headers, reply.read())


def test_a_newer_request_for_edits_ends_the_older_one_and_no_completion() -> None:
    engine = FakeEngine(
        pause=0.002, answer=lambda request: ((request.prediction or "text ") * 10)[: request.max_tokens]
    )
    with serving(engine, context=4096, edit_format="sweep-card") as served:
        older = served.open(PATH, body(places=[5, 20]))
        assert wait_for(lambda: len(engine.running) == 2)
        complete = {"document": "mine", "prefix": "x", "max_tokens": 100}
        completion = served.open("/v1/codespec/complete", complete)
        assert wait_for(lambda: len(engine.running) == 3)
        newer = served.open(PATH, body(text=TEXT + "more\n", max_tokens=20))
        replies = [read(connection) for connection in (older, completion, newer)]
    assert ends_of(replies[0]) == [(n, False, "A newer request for this document replaced this one.") for n in (0, 1)]
    assert replies[1].events[-1][1]["finish_reason"] == "length"
    assert ends_of(replies[2])[0][2] != ends_of(replies[0])[0][2]


def test_completions_go_first() -> None:
    engine = FakeEngine(pause=0.001, answer=lambda request: (request.prediction or "text ") * 10)
    with serving(engine, context=4096, edit_format="sweep-card") as served:
        first = served.open(PATH, body())
        assert wait_for(lambda: len(engine.running) == 1 and engine.steps > 5)
        engine.gate.clear()
        second = served.open("/v1/codespec/complete", {"prefix": "x", "max_tokens": 50})
        assert wait_for(lambda: served.daemon.num_open == 2)
        engine.gate.set()
        assert read(second).status == 200
        assert served.daemon.num_open == 1
        first.close()


def test_a_client_that_leaves_stops_the_work() -> None:
    engine = FakeEngine(pause=0.002, answer=lambda request: request.prediction * 50)
    with serving(engine, context=4096, edit_format="sweep-card") as served:
        connection = served.open(PATH, body(places=[3, 9, 27]))
        assert wait_for(lambda: len(engine.running) == 3)
        connection.close()
        assert served.idle() and wait_for(lambda: not engine.running)
