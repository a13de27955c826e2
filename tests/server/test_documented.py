"""The fields that other servers document: read, of no effect, or refused by name; none is dropped in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from codespec.server.dialects import llama_cpp, ollama, openai
from codespec.server.dialects.shared import Unread
from tests.server.daemons import Answer, Served

OTHERS: Any = ["x", 7, True, {"a": 1}, [[1, 2]]]  # values of any type, none of them neutral
GENERATE = {"prompt": "x = 1\n", "stream": False, "options": {"num_predict": 2}}
TABLES: dict[str, tuple[str, dict[str, Any], Mapping[str, Unread]]] = {
    "/completion": ("", {"prompt": "x = 1\n", "n_predict": 2}, llama_cpp.LLAMA_CPP),
    "/infill": ("", {"input_prefix": "x = 1\n", "n_predict": 2}, llama_cpp.INFILL),
    "/api/generate": ("", GENERATE, ollama.OLLAMA),
    "/api/generate options": ("options", GENERATE, ollama.OLLAMA_OPTIONS),
    "/v1/fim/completions": ("", {"prompt": "x = 1\n", "max_tokens": 2}, openai.MISTRAL),
    "/v1/completions": ("", {"prompt": "x = 1\n", "max_tokens": 2}, openai.OPENAI),
    "/v1/chat/completions": ("", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}, openai.CHAT),
}
# What llama.cpp's and Ollama's own pages send as an example, with every sampler switched off.
NEUTRAL = {
    "/completion": {"typical_p": 1.0, "repeat_penalty": 1.0, "repeat_last_n": 64, "mirostat": 0, "mirostat_tau": 5.0}
    | {"dry_multiplier": 0.0, "dry_base": 1.75, "xtc_probability": 0.0, "xtc_threshold": 0.1, "min_keep": 0}
    | {"logit_bias": [], "grammar": "", "ignore_eos": False, "n_keep": 0, "cache_prompt": True, "id_slot": -1},
    "/api/generate": {"raw": True, "keep_alive": "5m", "system": "", "format": "", "context": [], "think": False},
}


ROWS = [(path, name) for path, (_, _, table) in TABLES.items() for name in table]


def send(served: Served, path: str, fields: Mapping[str, Any]) -> tuple[Answer, str]:
    """Return the reply, and the names that an error must bear."""
    inside, body, _ = TABLES[path]
    sent = {**body, inside: {**body[inside], **fields}} if inside else {**body, **fields}
    return served.post(path.partition(" ")[0], sent), f"{inside}." if inside else ""


@pytest.mark.parametrize(("path", "name"), ROWS)
def test_a_field_that_would_change_the_text_is_refused_by_name(toy: Served, path: str, name: str) -> None:
    row = TABLES[path][2][name]
    for value in (*row.neutral, None):
        assert "is not supported (" not in send(toy, path, {name: value})[0].body.decode(), value
    for value in (other for other in OTHERS if other not in row.neutral):  # JSON's true equals 1
        reply, above = send(toy, path, {name: value})
        if row.noted:
            assert f"{above}{name} is not used: {row.why}" in reply.json["notes"], reply.body
        else:
            error = reply.json if path.startswith("/api") else reply.json["error"]
            assert (reply.status, error["field"]) == (400, f"{above}{name}"), reply.body
            assert row.why in reply.body.decode()


@pytest.mark.parametrize("path", NEUTRAL)
def test_an_example_with_everything_switched_off_is_answered_without_a_note(toy: Served, path: str) -> None:
    reply, _ = send(toy, path, NEUTRAL[path])
    assert reply.status == 200 and "notes" not in reply.json, reply.body


def test_the_window_of_a_penalty_is_refused_only_with_a_penalty(toy: Served) -> None:
    for path in ("/completion", "/api/generate options"):
        for penalty, window, status in ((1.2, 64, 400), (1.2, 0, 400), (1.2, -1, 200), (1, 64, 200), (None, 64, 200)):
            reply, _ = send(toy, path, {"repeat_penalty": penalty, "repeat_last_n": window})
            assert reply.status == status, (path, penalty, window)


def test_completion_writes_as_many_texts_as_llama_cpp(toy: Served) -> None:
    found = toy.post("/completion", {"prompt": "x = 1\n", "n_predict": 4, "n_cmpl": 3, "temperature": 1.0}).json
    assert [one["index"] for one in found] == [0, 1, 2]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_usage_is_null_until_the_last_chunk_if_it_was_requested(talker: Served, path: str) -> None:
    body = {**TABLES[path][1], "max_tokens": 4, "stream": True}
    *chunks, last, done = talker.post(path, {**body, "stream_options": {"include_usage": True}}).events
    assert done[1] == "[DONE]" and last[1]["choices"] == [] and last[1]["usage"]["completion_tokens"] == 4
    assert chunks and all(data["usage"] is None for _, data in chunks)
    assert not [data for _, data in talker.post(path, body).events[:-1] if "usage" in data]
