"""Ready-made prompts at the endpoints that have a field of their own for what such a prompt contains."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codespec.api.types import Snippet
from tests.server.daemons import serving
from tests.server.fakes import FakeEngine
from tests.server.talkers import without_fim

FIM = "<|repo_name|>r\n<|file_sep|>b.py\nb = 1\n<|file_sep|>.env\nKEY=1\n<|file_sep|>a.py\n"
FIM += "<|fim_prefix|>x = <|fim_suffix|>\ny = 2\n<|fim_middle|>"
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("/v1/fim/completions", {"prompt": FIM, "max_tokens": 2}),
    "tabby": ("/v1/completions", {"debug_options": {"raw_prompt": FIM}}),
    "openai": ("/v1/completions", {"prompt": FIM, "max_tokens": 2}),
    "llama.cpp": ("/completion", {"prompt": FIM, "n_predict": 2}),
    "ollama": ("/api/generate", {"prompt": FIM, "stream": False}),
}


@pytest.mark.parametrize("client", BODIES)
def test_no_marker_reaches_the_model_as_text_and_secrets_stay_out(client: str) -> None:
    engine = FakeEngine()
    with serving(engine) as served:
        path, body = BODIES[client]
        reply = served.post(path, body)
        assert reply.status == 200 and "may hold secrets" in reply.json["notes"][0]
    (request,) = engine.submitted
    assert (request.prefix, request.suffix, request.snippets) == ("x = ", "\ny = 2\n", (Snippet("b.py", "b = 1\n"),))


@pytest.mark.parametrize("client", BODIES)
def test_a_model_without_markers_refuses_it_by_name(client: str) -> None:
    engine = FakeEngine()
    engine.target.tokenizer = without_fim()
    with serving(engine) as served:
        path, body = BODIES[client]
        reply = served.post(path, body)
    field = "debug_options.raw_prompt" if client == "tabby" else "prompt"
    assert reply.status == 400 and f"{field} can't be used" in str(reply.json) and not engine.submitted


def test_source_text_at_mistrals_endpoint_stays_as_it_is() -> None:
    engine = FakeEngine()
    with serving(engine) as served:
        text = 'M = "<|fim_prefix|>"\n'
        assert served.post("/v1/fim/completions", {"prompt": text, "suffix": FIM, "max_tokens": 2}).status == 200
    (request,) = engine.submitted
    assert (request.prefix, request.suffix, request.snippets, request.shape) == (text, FIM, (), "auto")


@pytest.mark.parametrize("client", ["mistral", "openai", "llama.cpp", "ollama"])
def test_a_prompt_that_is_sent_both_ways_is_wrapped_once(client: str) -> None:
    engine = FakeEngine()
    with serving(engine) as served:
        path, body = BODIES[client]
        assert served.post(path, {**body, "suffix": "\ny = 2\n"}).status == 200
    (request,) = engine.submitted
    assert (request.prefix, request.suffix) == ("x = ", "\ny = 2\n")


@pytest.mark.parametrize("content", [FIM, [{"type": "text", "text": FIM}], f"{FIM}\n"])
def test_clients_that_only_chat_fill_in_as_well(content: object) -> None:
    """No chat template is needed, and none is used."""
    engine = FakeEngine()
    message = [{"role": "system", "content": "You complete code."}, {"role": "user", "content": content}]
    with serving(engine) as served:
        reply = served.post("/v1/chat/completions", {"messages": message, "max_tokens": 2})
        assert reply.status == 200 and reply.json["choices"][0]["message"]["content"] == " ="
        assert "may hold secrets" in reply.json["notes"][0]
        message[1]["content"] = "What does <|fim_prefix|> mean?"
        assert served.post("/v1/chat/completions", {"messages": message, "max_tokens": 2}).status == 400
    (request,) = engine.submitted
    assert (request.prefix, request.suffix, request.snippets) == ("x = ", "\ny = 2\n", (Snippet("b.py", "b = 1\n"),))


@pytest.mark.parametrize("client", BODIES)
def test_a_body_that_an_editor_saved_with_a_mark(client: str) -> None:
    """As `curl -d @body.json` sends it; another mark, or the same in the middle, is not UTF-8 JSON."""
    engine = FakeEngine()
    with serving(engine) as served:
        path, body = BODIES[client]
        data = json.dumps(body).encode()
        assert served.post(path, b"\xef\xbb\xbf" + data).status == 200
        for odd in (
            b"\xef\xbb\xbf" * 2 + data,
            b" \xef\xbb\xbf" + data,
            json.dumps(body).encode("utf-16"),
            b"\xef\xbb\xbf",
        ):
            assert served.post(path, odd).status == 400
