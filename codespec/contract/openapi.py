"""The OpenAPI description of codespec's own endpoints, generated from the declared bodies and events."""

from __future__ import annotations

import types
from dataclasses import is_dataclass
from functools import cache
from inspect import getdoc
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from codespec.contract.body import CompletionBody, Field, LookupBody, ReloadBody, body_fields
from codespec.contract.types import FinishReason, RoundEvent, Stats, TextEvent

NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}
SIZES = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}
ERROR = {"type": "object", "properties": {"error": {"type": "object", "properties": {"message": {"type": "string"}}}}}


@cache
def describe(version: str) -> dict[str, Any]:
    """Return the OpenAPI document for a version of the daemon."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "codespec", "version": version},
        "paths": {
            "/v1/codespec/complete": {"post": _operation(CompletionBody, "text/event-stream", _events())},
            "/v1/codespec/files": {
                "post": _operation(LookupBody, "application/json", _object({"files": int, "bytes": int}))
            },
            "/v1/codespec/reload": {
                "post": _operation(
                    ReloadBody, "application/json", _object({"target": str, "drafter": str, "seconds": float})
                )
            },
            "/health": {"get": _probe("the process lives; details only with the token")},
            "/ready": {"get": _probe("the model is loaded and the engine runs", "not yet, or not now")},
        },
    }


def _probe(fine: str, wrong: str = "") -> dict[str, Any]:
    """Return the operation of a probe, which needs no token."""
    media = {"application/json": {"schema": _object({"status": str})}}
    replies: dict[str, Any] = {"200": {"description": fine, "content": media}}
    if wrong:
        replies["503"] = {"description": wrong, "content": {"application/json": {"schema": ERROR}}}
    return {"security": [], "responses": replies}


def _operation(body: type, media: str, reply: dict[str, Any]) -> dict[str, Any]:
    refused = {"description": "one sentence that names the field", "content": {"application/json": {"schema": ERROR}}}
    return {
        "description": getdoc(body),
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema(body)}}},
        "responses": {"200": {"description": "", "content": {media: {"schema": reply}}}, "400": refused},
    }


def _events() -> dict[str, Any]:
    """Return the schema of the data of each server-sent event, by the event's name."""
    numbers: dict[str, Any] = {"choice": int, "cached_tokens": int, "new_tokens": int, "token_ids": list[int]}
    done = _object({**numbers, "finish_reason": FinishReason, "stats": Stats})
    each = {"text": schema(TextEvent), "round": schema(RoundEvent), "done": done}
    del each["round"]["properties"]["logprobs"]  # other endpoints report these
    error = _object({"field": str, "message": str})
    return {"oneOf": [{"title": name, **data} for name, data in {**each, "error": error}.items()]}


def schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type: a plain value, a list, a table, a choice, a dataclass or a declared body."""
    origin, inner = get_origin(kind), [item for item in get_args(kind) if item is not type(None)]
    if kind in NAMES:
        return {"type": NAMES[kind]}
    if is_typeddict(kind):
        fields = body_fields(kind)
        properties = {name: _declared(field) for name, field in fields.items()}
        required = [name for name, field in fields.items() if field.required]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if is_dataclass(kind):
        return _object(get_type_hints(kind))
    if origin is Literal:
        return {"enum": inner}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema(item) for item in inner]}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema(inner[1])}
    return {"type": "array", "items": schema(inner[0])}


def _object(hints: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema(kind) for name, kind in hints.items()}}


def _declared(field: Field) -> dict[str, Any]:
    """Return the schema of a declared field, with its description and bounds. Of several types, a list is last."""
    found, facts = schema(field.kind), field.facts
    bounded = found.get("anyOf", [found])[-1]
    least, most = SIZES.get(bounded.get("type", ""), ("minimum", "maximum"))
    bounds = {least: facts.least, most: facts.most, "enum": list(facts.choices) or None}
    bounded |= {name: value for name, value in bounds.items() if value is not None}
    return {**found, "description": facts.help}
