"""The declared bodies and events: the daemon checks them, /openapi.json describes them, the browser's page has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from codespec import __version__
from codespec.api.body import CompletionBody, CursorBody, Field, LookupBody, body_fields, describe
from codespec.api.types import RoundEvent, Stats
from tests.server.daemons import Served

WIRE = Path(__file__).resolve().parents[2] / "web/src/wire.ts"
PATHS: dict[str, type] = {"/v1/codespec/complete": CompletionBody, "/v1/codespec/files": LookupBody}
COMPLETE, FILES = PATHS
BASE: dict[str, dict[str, Any]] = {COMPLETE: {"prefix": "x", "max_tokens": 0}, FILES: {"document": "x"}}


def of_the_page(interface: str) -> set[str]:
    """Return the fields of an interface in the source of the browser's page."""
    body = re.search(rf"interface {interface}\b[^{{]*{{(.*?)}}", WIRE.read_text(encoding="utf-8"), re.DOTALL)
    assert body
    return set(re.findall(r"readonly (\w+)\??:", body[1]))


def test_the_page_in_the_browser_sends_and_reads_declared_fields() -> None:
    assert "prefix_offset" in of_the_page("Ask") <= set(body_fields(CompletionBody))
    assert of_the_page("Round") <= set(RoundEvent.__dataclass_fields__)
    assert of_the_page("Stats") <= set(Stats.__dataclass_fields__)


def sent(path: str) -> dict[str, Any]:
    schema = describe(__version__)["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return dict(schema["properties"])


def test_every_field_and_its_limits_are_described(toy: Served) -> None:
    assert toy.ask("GET", "/openapi.json").json == describe(__version__)
    for path, schema in PATHS.items():
        assert sent(path).keys() == body_fields(schema).keys()
    assert sent(COMPLETE)["prefix"] == {"type": "string", "maxLength": 65_536, "description": "text before the cursor"}
    assert sent(COMPLETE)["shape"]["enum"] == ["auto", "line", "block", "raw"]
    assert sent(COMPLETE)["stop"]["anyOf"][1] == {"type": "array", "items": {"type": "string"}, "maxItems": 64}
    assert sent(COMPLETE)["cursor"]["properties"]["indent"]["minimum"] == 0


def test_every_event_has_the_described_fields(toy: Served) -> None:
    reply = describe(__version__)["paths"][COMPLETE]["post"]["responses"]["200"]["content"]["text/event-stream"][
        "schema"
    ]
    described = {each["title"]: each["properties"] for each in reply["oneOf"]}
    body = {"prefix": "x = 1\nx = 1\nx = ", "max_tokens": 12, "shape": "raw", "token_ids": True}
    events = toy.post(COMPLETE, body).events
    assert {name for name, _ in events} == {"text", "round", "done"}
    for name, data in events:
        assert data.keys() == described[name].keys(), name
    assert events[-1][1]["stats"].keys() == described["done"]["stats"]["properties"].keys()


def wrong(field: Field) -> list[Any]:
    """Return values that a field refuses: of other types, and one beyond each bound."""
    values: list[Any] = [[{}], {"x": 1}]
    least, most = field.facts.least, field.facts.most
    if field.kind in (int, float):
        return [*values, "1", True, *([] if least is None else [least - 1]), *([] if most is None else [most + 1])]
    if field.kind is str:
        return [*values, 1, "\ud800", *([] if most is None else ["x" * (int(most) + 1)])]
    if field.kind is bool:
        return [*values, 1, "true"]
    return [1, {"x": 1}, [1], *([] if most is None else [["x"] * (int(most) + 1), [{"text": ""}] * (int(most) + 1)])]


@pytest.mark.parametrize(
    ("path", "label", "field"),
    [
        *((path, name, field) for path, schema in PATHS.items() for name, field in body_fields(schema).items()),
        *((COMPLETE, f"cursor.{name}", field) for name, field in body_fields(CursorBody).items()),
    ],
    ids=lambda value: "" if isinstance(value, Field) else value,
)
def test_a_wrong_value_is_one_sentence_that_names_the_field(path: str, label: str, field: Field, toy: Served) -> None:
    above, _, name = label.rpartition(".")
    for value in wrong(field):
        change = {above: {name: value}} if above else {name: value}
        reply = toy.post(path, {**BASE[path], **change})
        error = reply.json["error"]
        assert (reply.status, error["field"].startswith(label)) == (400, True), (label, value, reply.body)
        assert error["message"].startswith(error["field"]) and error["message"].endswith("."), error


@pytest.mark.parametrize("path", PATHS)
def test_null_is_the_same_as_absent(path: str, toy: Served) -> None:
    fields = body_fields(PATHS[path])
    nulls = {name: None for name, field in fields.items() if not field.required}
    assert toy.post(path, {**nulls, **BASE[path]}).status == 200
    for name in fields.keys() - nulls.keys():
        reply = toy.post(path, {**BASE[path], name: None})
        assert reply.json["error"]["message"] == f"{name} is missing: send it."
