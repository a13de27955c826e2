"""Each API dialect by shape: the fields clients send and read, with the engine's own text in the reply."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from codespec.api.types import CompletionRequest, Snippet
from codespec.server.dialects.codespec import read_request
from codespec.server.dialects.shared import read_max_tokens
from codespec.server.wire import Fields
from tests.server.conftest import Plain
from tests.server.daemons import Served

PREFIX = "import os\n\n\ndef first(values):\n    for value in values:\n"
SUFFIX = "\n\nprint(first([1, 2]))\n"
FIM = "<|fim_prefix|>{}<|fim_suffix|>{}<|fim_middle|>"


def asked(**change: Any) -> CompletionRequest:
    return CompletionRequest(**{"prefix": PREFIX, "max_tokens": 12, **change})


def test_infill_as_llama_vim_sends_it(toy: Served, plain: Plain) -> None:
    fields = ["content", "timings/prompt_n", "timings/predicted_per_second", "tokens_cached", "truncated", "none/such"]
    body = {
        "id_slot": 0,
        "input_prefix": PREFIX,
        "prompt": "        ret",
        "input_suffix": SUFFIX,
        "input_extra": [{"text": "x = 1\n", "filename": "a.py", "time": [1, 2]}, {"text": "y = 2\n"}],
        "n_predict": 12,
        "n_indent": 8,
        "top_k": 40,
        "top_p": 0.9,
        "samplers": ["top_k", "top_p", "infill"],
        "stop": [],
        "stream": False,
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 100_000,
        "response_fields": fields,
        "model": "",
    }
    reply = toy.post("/infill", body, Authorization="Bearer ")
    snippets = (Snippet("a.py", "x = 1\n"), Snippet("", "y = 2\n"))
    request = asked(prefix=PREFIX + "        ret", suffix=SUFFIX, snippets=snippets, shape="auto", heal=True)
    request = CompletionRequest(**{**_values(request), "top_k": 40, "top_p": 0.9})
    assert reply.json["content"] == plain(request)[0].text
    assert list(reply.json) == fields[:-1]
    assert re.match(rb'^\s*{.*"content":"', reply.body) and b"\n" not in reply.body, "llama.vim reads it like that"


def _values(request: CompletionRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in CompletionRequest.__dataclass_fields__}


def test_infill_as_llama_vscode_reads_it(toy: Served, plain: Plain) -> None:
    body = {
        "input_prefix": PREFIX,
        "input_suffix": SUFFIX,
        "prompt": "",
        "n_predict": 12,
        "temperature": 0.8,
        "n_cmpl": 3,
    }
    found = toy.post("/infill", body).json
    request = asked(suffix=SUFFIX, shape="auto", heal=True, temperature=0.8, n=3)
    assert [one["content"] for one in found] == [choice.text for choice in plain(request)]
    for one in found:
        assert one["generation_settings"]["n_ctx"] == 512 and one["stop"] is True and one["model"] == "toy"
        for name in (
            "prompt_n",
            "prompt_ms",
            "prompt_per_second",
            "predicted_n",
            "predicted_ms",
            "predicted_per_second",
        ):
            assert one["timings"][name] >= 0
        assert one["tokens_cached"] > 0


def test_a_warm_up_makes_the_next_prefill_short(toy: Served) -> None:
    text = "# warm\n" + PREFIX * 4
    assert toy.post("/infill", {"input_prefix": text, "n_predict": 0, "response_fields": [""]}).json == {}
    timings = toy.post("/infill", {"input_prefix": text, "n_predict": 4}).json["timings"]
    assert timings["cache_n"] > 10 * timings["prompt_n"]


def test_llama_completion_whole_and_streamed(toy: Served, plain: Plain) -> None:
    body = {"prompt": PREFIX, "n_predict": 12, "seed": 3, "temperature": 0.7, "repeat_penalty": 1.2, "stop": ["zzz"]}
    expected = plain(asked(seed=3, temperature=0.7, repetition_penalty=1.2, stop=("zzz",)))[0]
    whole = toy.post("/completion", body).json
    assert whole["content"] == expected.text and whole["stop_type"] == "limit" and whole["tokens_predicted"] == 12
    assert whole["timings"]["draft_n"] >= whole["timings"]["draft_n_accepted"]
    streamed = [data for _, data in toy.post("/completion", {**body, "stream": True}).events]
    assert "".join(data["content"] for data in streamed) == expected.text
    assert [data["stop"] for data in streamed] == [False] * (len(streamed) - 1) + [True]


def test_llama_health_props_tokenize(toy: Served) -> None:
    assert toy.ask("GET", "/health").json["status"] == "ok"
    props = toy.ask("GET", "/props").json
    assert props["default_generation_settings"]["n_ctx"] == 512 and props["total_slots"] == 4
    tokens = toy.post("/tokenize", {"content": PREFIX}).json["tokens"]
    tokenizer = toy.source.loaded.tokenizer  # type: ignore[union-attr]
    assert tokens == tokenizer.encode(PREFIX)


def test_openai_completions(toy: Served, plain: Plain) -> None:
    body = {"model": "any", "prompt": PREFIX, "max_tokens": 12, "n": 2, "temperature": 0.9, "seed": 5, "user": "me"}
    expected = plain(asked(n=2, temperature=0.9, seed=5))
    reply = toy.post("/v1/completions", {**body, "logprobs": None, "echo": False, "frequency_penalty": 0}).json
    assert [choice["text"] for choice in reply["choices"]] == [choice.text for choice in expected]
    assert [choice["finish_reason"] for choice in reply["choices"]] == ["length", "length"]
    assert reply["object"] == "text_completion" and reply["id"].startswith("cmpl-") and reply["model"] == "toy"
    prompt = expected[0].stats.prompt_tokens
    counts = {name: reply["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert counts == {"prompt_tokens": prompt, "completion_tokens": 24, "total_tokens": prompt + 24}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = [data for _, data in toy.post("/v1/completions", {**body, **options}).events]
    assert events[-1] == "[DONE]" and events[-2]["usage"]["completion_tokens"] == 24
    for choice in (0, 1):
        own = [item for event in events[:-1] for item in event["choices"] if item["index"] == choice]
        assert "".join(item["text"] for item in own) == expected[choice].text
        assert [item["finish_reason"] for item in own][-1] == "length"


@pytest.mark.parametrize("stop", [["\n"], "\n", ["zzz", "\n"]])
def test_openai_stop(toy: Served, plain: Plain, stop: Any) -> None:
    reply = toy.post("/v1/completions", {"prompt": PREFIX, "max_tokens": 60, "stop": stop}).json["choices"][0]
    assert reply["text"] == plain(asked(max_tokens=60, stop=("\n",)))[0].text and "\n" not in reply["text"]


@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate"])
def test_a_suffix_and_ready_made_markers_fill_in_alike(toy: Served, plain: Plain, path: str) -> None:
    expected = plain(asked(suffix=SUFFIX, snippets=(Snippet("b.py", "b = 1\n"),)))[0].text
    without = plain(asked(suffix=SUFFIX))[0].text
    ready_made = FIM.format(PREFIX, SUFFIX)
    with_file = "<|repo_name|>demo\n<|file_sep|>b.py\nb = 1\n<|file_sep|>a.py\n" + ready_made
    llama = f"<PRE> {PREFIX} <SUF>{SUFFIX} <MID>"
    codegeex = f"<|user|>\n<|code_suffix|>{SUFFIX}<|code_prefix|>{PREFIX}<|code_middle|><|assistant|>\n"
    starcoder = ready_made.replace("<|", "<").replace("|>", ">")
    texts = []
    for body in (
        {"prompt": PREFIX, "suffix": SUFFIX},
        {"prompt": ready_made},
        {"prompt": starcoder},
        {"prompt": llama},
        {"prompt": codegeex},
        {"prompt": with_file},
    ):
        reply = toy.post(path, {**body, "max_tokens": 12, "options": {"num_predict": 12}, "stream": False}).json
        texts.append(reply["response"] if "response" in reply else reply["choices"][0]["text"])
    assert texts == [without] * 5 + [expected]
    assert without != plain(asked())[0].text


@pytest.mark.parametrize(
    ("field", "value"),
    [("logprobs", 6), ("echo", 1), ("best_of", 0), ("logit_bias", {"1": 2}), ("presence_penalty", 0.5),
     ("prompt", [1, -2]), ("prompt", []), ("prompt", [[]]), ("prompt", [1, "a"]), ("prompt", ["a"] * 65),
     ("prompt", None), ("n", 0), ("n", 17), ("stop", [1]), ("temperature", 3), ("top_p", "x"),
     ("max_tokens", 1.5), ("stream", 1), ("suffix", 1), ("seed", True), ("prompt", "\ud800"), ("stop", "\udfff")],
)  # fmt: skip
def test_what_openai_clients_may_not_ask(toy: Served, field: str, value: Any) -> None:
    reply = toy.post("/v1/completions", {"prompt": PREFIX, field: value})
    error = reply.json["error"]
    assert (reply.status, error["field"], error["param"]) == (400, field, field)
    assert error["type"] == "invalid_request_error" and error["message"].startswith(field)


def test_models(toy: Served) -> None:
    reply = toy.ask("GET", "/v1/models").json
    assert reply["object"] == "list" and [model["id"] for model in reply["data"]] == ["toy"]
    (model,) = reply["data"]
    assert model["capabilities"] == {"completion_chat": False, "completion_fim": True} and model["type"] == "base"


def test_mistral(toy: Served, plain: Plain) -> None:
    body = {"model": "codestral-latest", "prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 12, "stop": ["zzz"]}
    expected = plain(asked(suffix=SUFFIX, stop=("zzz",), shape="auto", heal=True))[0].text
    whole = toy.post("/v1/fim/completions", body).json["choices"][0]
    assert whole["message"] == {"role": "assistant", "content": expected}
    events = [data for _, data in toy.post("/v1/fim/completions", {**body, "stream": True}).events]
    assert events.pop() == "[DONE]"
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == expected
    assert events[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_tabby(toy: Served, plain: Plain) -> None:
    body = {
        "language": "python",
        "segments": {
            "prefix": PREFIX,
            "suffix": SUFFIX,
            "filepath": "a.py",
            "git_url": "x",
            "declarations": [{"filepath": "b.py", "body": "b = 1\n"}],
            "relevant_snippets_from_changed_files": [{"filepath": "c.py", "body": "c = 1\n", "score": 0.5}],
            "clipboard": "d",
        },
        "user": "me",
        "mode": "standard",
    }
    snippets = (Snippet("b.py", "b = 1\n"), Snippet("c.py", "c = 1\n"))
    where = {"path": "a.py", "language": "python", "shape": "auto", "heal": True, "max_tokens": 64}
    expected = plain(asked(suffix=SUFFIX, snippets=snippets, **where))[0]
    reply = toy.post("/v1/completions", body).json
    assert reply["choices"] == [{"index": 0, "text": expected.text}] and reply["id"].startswith("cmpl-")
    raw = toy.post("/v1/completions", {"debug_options": {"raw_prompt": PREFIX}}).json
    assert raw["choices"][0]["text"] == plain(asked(max_tokens=64))[0].text
    for method in ("GET", "POST"):
        assert toy.ask(method, "/v1/health").json["model"] == "toy"
    view = toy.post("/v1/events?select_kind=line", {"type": "view", "completion_id": reply["id"], "choice_index": 0})
    assert (view.status, view.body) == (200, b"")
    assert toy.ask("GET", "/v1beta/server_setting").json == {"disable_client_side_telemetry": True}
    wrong = toy.post("/v1/completions", {"debug_options": {}, "prompt": "x"})
    assert (wrong.status, wrong.json["error"]["field"]) == (400, "segments")


def test_ollama(toy: Served, plain: Plain) -> None:
    options = {"num_predict": 12, "temperature": 0.7, "seed": 4, "stop": ["zzz"]}
    expected = plain(asked(suffix=SUFFIX, temperature=0.7, seed=4, stop=("zzz",)))[0].text
    body = {"model": "x", "prompt": PREFIX, "suffix": SUFFIX, "options": options}
    lines = [json.loads(line) for line in toy.post("/api/generate", body).body.splitlines()]
    assert "".join(line["response"] for line in lines) == expected
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    whole = toy.post("/api/generate", {**body, "stream": False}).json
    assert whole["response"] == expected and whole["eval_count"] == 12 and whole["created_at"].endswith("Z")
    wrong = toy.post("/api/generate", {**body, "options": {"num_predict": "x"}})
    assert wrong.status == 400 and wrong.json["error"].startswith("options.num_predict must")


def test_codespecs_own_endpoint_tells_rounds_and_counts(toy: Served, plain: Plain) -> None:
    cursor = {"context": "block_start", "open_brackets": "", "indent": 4}
    body = {
        "document": "file:///a.py", "version": 3, "language": "python", "path": "a.py", "prefix": PREFIX * 3,
        "prefix_offset": 0, "suffix": SUFFIX, "snippets": [{"path": "b.py", "text": "b = 1\n"}], "cursor": cursor,
        "trigger": "automatic", "n": 1, "max_tokens": 40, "deadline_ms": 60_000, "shape": "raw",
    }  # fmt: skip
    reply = toy.post("/v1/codespec/complete", body)
    request = asked(
        prefix=PREFIX * 3, suffix=SUFFIX, snippets=(Snippet("b.py", "b = 1\n"),), max_tokens=40, path="a.py"
    )
    expected = plain(CompletionRequest(**{**_values(request), "language": "python"}))[0]
    assert "".join(data["text"] for name, data in reply.events if name == "text") == expected.text
    rounds = [data for name, data in reply.events if name == "round"]
    name, done = reply.events[-1]
    assert name == "done" and done["finish_reason"] == expected.finish_reason
    assert done["stats"]["rounds"] == len(rounds) and done["stats"]["drafted"] > 0
    assert done["cached_tokens"] + done["new_tokens"] == done["stats"]["prompt_tokens"] and "token_ids" not in done


def test_codespecs_own_endpoint_gives_ids_and_heals_where_that_is_asked(toy: Served, plain: Plain) -> None:
    body = {"prefix": PREFIX[:-3], "max_tokens": 8, "shape": "raw", "token_ids": True}
    for heal in (False, True):
        expected = plain(CompletionRequest(prefix=PREFIX[:-3], max_tokens=8, heal=heal))[0]
        name, done = toy.post("/v1/codespec/complete", {**body, "heal": heal}).events[-1]
        assert name == "done" and tuple(done["token_ids"]) == expected.token_ids
    assert "heal must be" in toy.post("/v1/codespec/complete", {**body, "heal": "no"}).json["error"]["message"]


@pytest.mark.parametrize(
    ("change", "field"),
    [({"prefix": None}, "prefix"), ({"prefx": 1}, "prefx"), ({"prefix": "a" * 65537}, "prefix"), ({"n": 17}, "n"),
     ({"suffix": 3}, "suffix"), ({"snippets": [{"path": "a"}]}, "snippets[0].text"), ({"shape": "round"}, "shape"),
     ({"snippets": {}}, "snippets"), ({"cursor": {"line": 1}}, "cursor.line"), ({"max_tokens": -1}, "max_tokens"),
     ({"max_tokens": 10**30}, "max_tokens"), ({"deadline_ms": -1}, "deadline_ms"), ({"version": "a"}, "version"),
     ({"temperature": 1e9}, "temperature"), ({"top_p": 0}, "top_p"), ({"speculate": "yes"}, "speculate")],
)  # fmt: skip
def test_what_the_language_server_may_not_ask(toy: Served, change: dict[str, Any], field: str) -> None:
    reply = toy.post("/v1/codespec/complete", {"prefix": PREFIX, **change})
    assert (reply.status, reply.json["error"]["field"]) == (400, field), reply.body
    assert field in reply.json["error"]["message"]


def test_an_editors_setting_is_cut_to_what_the_model_can_do_and_told(toy: Served) -> None:
    """A request for the target's own tokens is rejected instead, because they would not be as requested."""
    body = {"prefix": PREFIX, "max_tokens": 4096}
    soon = {"shape": "block", "stop": ["e", " "]}
    name, done = toy.post("/v1/codespec/complete", {**body, **soon}).events[-1]
    (note, *_) = done["stats"]["notes"]
    assert (name, note) == ("done", "max_tokens was cut to 256, half of the context: the prompt needs the other half")
    refused = toy.post("/v1/codespec/complete", {**body, "shape": "raw"})
    assert (refused.status, refused.json["error"]["field"]) == (400, "max_tokens")


@pytest.mark.parametrize(("asked_for", "tokens"), [(None, 64), (0, 0), (1, 1), (300, 256), (9999, 256), (-1, 256)])
def test_a_client_that_asks_for_too_much_gets_half_the_context(asked_for: int | None, tokens: int) -> None:
    notes: list[str] = []
    assert read_max_tokens(Fields({"max_tokens": asked_for}), "max_tokens", 512, notes) == tokens
    assert bool(notes) == (asked_for in (300, 9999))


def test_a_cursor_at_the_beginning_of_its_line() -> None:
    for indent in ({}, {"indent": 0}):
        fields = Fields({"prefix": "", "cursor": {"context": "unknown", **indent}})
        cursor = read_request(fields, 512).request.cursor
        assert cursor is not None and cursor.indent == 0
