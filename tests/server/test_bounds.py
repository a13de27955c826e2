"""Every integer that a client may send has bounds; the fields are found by recording the handlers' reads."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import codespec.server
from codespec.api.limits import MAX_WORD
from codespec.server.app import build_app
from codespec.server.daemon import Daemon
from codespec.server.engine_thread import EngineThread
from codespec.server.wire import Fields
from tests.server.daemons import serving
from tests.server.test_fuzz import talking_engine
from tests.server.test_process import Process

FOLDER = Path(codespec.server.__file__).parent
SPOKEN = [{"role": "user", "content": "x"}]
# A valid body for each endpoint that reads one, with the fields that enable others.
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/codespec/proof": [{"nonce": "0" * 64}],
    "/v1/codespec/complete": [
        {"prefix": "x", "cursor": {"indent": 4}, "version": 1, "n": 1, "seed": 1, "max_tokens": 1}
    ],
    "/v1/codespec/files": [{"document": "x"}],
    "/v1/codespec/edit": [
        {
            "path": "a.py",
            "text": "x",
            "places": [0],
            "first_row": 0,
            "version": 1,
            "max_tokens": 1,
            "cursor": {"row": 0, "column": 0},
            "history": [{"path": "a.py", "row": 0, "old": "", "new": ""}],
            "diagnostics": [{"row": 0, "message": "x"}],
        }
    ],
    "/backend/next_edit_autocomplete": [
        {"file_path": "a.py", "file_contents": "x", "cursor_position": 0, "editor_diagnostics": [{"line": 1}]}
    ],
    "/infill": [{"input_prefix": "x"}],
    "/completion": [{"prompt": "x"}],
    "/detokenize": [{"tokens": [1]}],
    "/tokenize": [{"content": "x"}],
    "/v1/completions": [{"prompt": "x", "logprobs": 1}, {"segments": {"prefix": "x"}}],
    "/v1/chat/completions": [{"messages": SPOKEN, "logprobs": True}, {"messages": SPOKEN, "max_completion_tokens": 1}],
    "/v1/fim/completions": [{"prompt": "x"}],
    "/v1/events": [{}],
    "/api/generate": [{"prompt": "x", "stream": False, "options": {"seed": 1}}],
    "/api/show": [{"model": "x"}],
}
WIDEST = 1 << 63  # limit of all bounds, reached only by seeds: a number fits into eight bytes


class Whole(NamedTuple):
    """A field that takes an integer: where it is read, in which body, and its bounds."""

    place: tuple[str, int]
    path: str
    body: str
    label: str
    least: int
    most: int


def found(monkeypatch: pytest.MonkeyPatch) -> set[Whole]:
    """Return the integer fields that the handlers read from the bodies above."""
    seen: set[Whole] = set()
    asked = {"path": "", "body": ""}
    read = Fields.whole

    def whole(self: Fields, name: str, default: int, least: int, most: int) -> int:
        caller = inspect.stack()[1]
        place = (Path(caller.filename).name, caller.frame.f_lineno)
        seen.add(Whole(place, asked["path"], asked["body"], self.label(name), least, most))
        return read(self, name, default, least, most)

    monkeypatch.setattr(Fields, "whole", whole)
    with serving(talking_engine()) as served:
        for path, body in bodies():
            asked.update(path=path, body=json.dumps(body))
            assert served.post(path, body).status == 200, (path, body)
    return seen


def bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    yield from ((path, body) for path, all_ in BODIES.items() for body in all_)


def test_every_endpoint_that_reads_a_body_is_asked() -> None:
    app = build_app(Daemon(EngineThread(lambda _: pytest.fail("nothing is loaded")), 0))
    posted = {route.resource.canonical for route in app.router.routes() if route.method == "POST" and route.resource}
    assert posted - {"/v1/health"} == set(BODIES)


def test_every_whole_number_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place in the source that reads an integer is reached and states both bounds."""
    seen = found(monkeypatch)
    places = {place for file in FOLDER.rglob("*.py") for place in reading_places(file)}
    assert len(places) > 8 and {whole.place for whole in seen} == places, "a body above must reach the others"
    for whole in seen:
        assert -WIDEST <= whole.least <= whole.most < WIDEST, whole
        assert "seed" in whole.label or -(1 << 31) <= whole.least <= whole.most < 1 << 31, whole


def reading_places(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the places where a file reads integers; `shape.whole` writes a choice."""
    for node in ast.walk(ast.parse(file.read_text())):
        spelled = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if spelled.endswith(".whole") and spelled != "shape.whole":
            yield file.name, node.lineno


def test_one_beyond_a_bound_is_one_sentence(monkeypatch: pytest.MonkeyPatch, real: Process) -> None:
    """The real daemon, beyond each bound, and far beyond, where each value would take memory."""
    for whole in sorted(found(monkeypatch)):
        for value in {whole.least - 1, whole.most + 1, 1 << 62, 1 << 64}:
            if whole.least <= value <= whole.most:
                continue
            body = with_field(json.loads(whole.body), whole.label.split("."), value)
            status, reply = real.ask("POST", whole.path, body)
            error = json.loads(reply)
            error = error if isinstance(error["error"], str) else error["error"]
            message = error.get("message") or error["error"]
            assert (status, error["field"]) == (400, whole.label), (whole, value, reply)
            assert message == f"{whole.label} must be a whole number from {whole.least} to {whole.most}.", reply
    assert real.ask("GET", "/health")[0] == 200


def with_field(body: dict[str, Any], names: list[str], value: int) -> dict[str, Any]:
    """Return the body with a field set, possibly a nested one or one of a list's first object."""
    name, *rest = names
    if name.endswith("[0]"):
        key = name.removesuffix("[0]")
        return {**body, key: [with_field(body[key][0], rest, value)]}
    return {**body, name: with_field(body.get(name, {}), rest, value) if rest else value}


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_ids_beyond_the_vocabulary_are_one_sentence(path: str, real: Process) -> None:
    for number in (-1, 1 << 31, 1 << 62, 1 << 64):
        status, reply = real.ask("POST", path, {"prompt": [number]})
        assert (status, json.loads(reply)["error"]["field"]) == (400, "prompt")


def test_texts_of_a_list_have_a_bound(real: Process) -> None:
    """The longest text and the longest list allowed, and one more."""
    for stop, status in (
        ("x" * MAX_WORD, 200),
        ("x" * (MAX_WORD + 1), 400),
        ([str(number) for number in range(64)], 200),
        ([str(number) for number in range(65)], 400),
    ):
        got, reply = real.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1, "stop": stop})
        assert got == status, reply
