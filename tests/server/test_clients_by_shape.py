"""Editor clients by shape: the request body each one sends, and only the fields it reads."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from codespec.api.types import CompletionRequest, Snippet
from codespec.server.dialects.llama_cpp import indented
from tests.server.conftest import Plain
from tests.server.daemons import Served, serving
from tests.server.fakes import FakeEngine

PREFIX, LINE, SUFFIX = "import os\n\n\ndef first(values):\n", "    for value in ", "\n\nprint(first([1, 2]))\n"
FIM = "<|fim_prefix|>{}<|fim_suffix|>{}<|fim_middle|>"
SPEED = ("per_token_ms", "per_second", "n", "ms")
VIM_FIELDS = [
    "content",
    *(f"timings/{kind}_{name}" for kind in ("prompt", "predicted") for name in SPEED),
    "truncated",
    "tokens_cached",
]


def asked(**change: Any) -> CompletionRequest:
    return CompletionRequest(**{"prefix": PREFIX + LINE, "suffix": SUFFIX, "max_tokens": 16, **change})


def in_editor(plain: Plain, **change: Any) -> str:
    """Return the text between prefix and suffix, ended by syntax."""
    return plain(asked(shape="auto", heal=True, **change))[0].text


def vim(**change: Any) -> dict[str, Any]:
    """Return llama.vim's body."""
    body = {
        "id_slot": 0,
        "input_prefix": PREFIX,
        "input_suffix": SUFFIX,
        "input_extra": [{"text": "y = 2\n", "time": [12, 3], "filename": "a.py"}],
        "prompt": LINE,
        "n_predict": 16,
        "stop": [],
        "n_indent": 4,
        "top_k": 40,
        "top_p": 0.9,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 100_000,
        "response_fields": VIM_FIELDS,
        "model": "",
    }
    return {**body, **change}


def test_llama_vim(toy: Served, plain: Plain) -> None:
    warm = vim(n_predict=0, temperature=0.0, samplers=[], t_max_predict_ms=1, response_fields=[""], prompt="")
    assert toy.post("/infill", warm, Authorization="Bearer ").body == b"{}"
    body = toy.post("/infill", vim(), Authorization="Bearer ").body.decode()
    assert "\n" not in body, "classic Vim reads line by line"
    assert re.search(r"^\s*{", body) and re.search(r'"content"\s*:"', body), "others it drops without a word"
    reply = json.loads(body)
    assert list(reply) == VIM_FIELDS
    written = in_editor(plain, snippets=(Snippet("a.py", "y = 2\n"),), top_k=40, top_p=0.9)
    assert reply["content"] == indented(written, 4)
    assert reply["timings/prompt_n"] > 0 and reply["timings/predicted_per_second"] > 0 and reply["tokens_cached"] > 0


@pytest.mark.parametrize(
    ("text", "least", "kept"),
    [("x)\n        y\n    z\n", 8, "x)\n        y"), ("x\n\n\n    y\nz", 4, "x\n\n\n    y"), ("x\n\n\nz", 4, "x"),
     ("x\n\ty\n  z", 1, "x\n\ty\n  z"), ("x\n\ty\nz", 1, "x\n\ty"),
     ("x\ny", 0, "x\ny"), ("", 4, ""), ("x\n", 4, "x\n")],
)  # fmt: skip
def test_llama_vims_least_indented_line(text: str, least: int, kept: str) -> None:
    assert indented(text, least) == kept


def test_llama_vim_is_told_where_lines_end_by_indentation() -> None:
    """With an engine that writes its prompt backwards; /completion accepts n_indent too."""
    text = "x:\n        y\n    z"
    body = {"prompt": text[::-1], "n_predict": len(text), "n_indent": 8}
    with serving(FakeEngine()) as served:
        for path, more in (("/completion", {}), ("/infill", {"input_prefix": body["prompt"], "prompt": ""})):
            cut = served.post(path, {**body, **more}).json
            assert (cut["content"], cut["stop_type"]) == ("x:\n        y", "limit")
        streamed = served.post("/completion", {**body, "stream": True}).events
    assert "".join(data["content"] for _, data in streamed) == text
    assert streamed[-1][1]["notes"] == ["n_indent is not used in a stream"]


def test_llama_vscode(toy: Served, plain: Plain) -> None:
    body = {
        "input_prefix": PREFIX,
        "input_suffix": SUFFIX,
        "input_extra": [{"text": "y = 2\n", "time": 1700000000000, "filename": "/project/a.py"}],
        "prompt": LINE,
        "n_predict": 16,
        "top_k": 40,
        "top_p": 0.99,
        "temperature": 0.1,
        "stream": False,
        "n_cmpl": 3,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 100_000,
    }
    assert toy.ask("GET", "/health").status == 200
    found = toy.post("/infill", body, Authorization="Bearer key").json
    request = asked(
        snippets=(Snippet("/project/a.py", "y = 2\n"),),
        top_k=40,
        top_p=0.99,
        temperature=0.1,
        n=3,
        shape="auto",
        heal=True,
    )
    assert [one["content"] for one in found] == [done.text for done in plain(request)]
    for one in found:
        assert one["generation_settings"]["n_ctx"] > 0 and one["tokens_cached"] > 0
        for name in (
            "prompt_n",
            "prompt_ms",
            "prompt_per_second",
            "predicted_n",
            "predicted_ms",
            "predicted_per_second",
        ):
            assert one["timings"][name] >= 0
    wrong = toy.post("/infill", {**body, "n_cmpl": 99}).json
    assert wrong["error"]["message"].startswith("n_cmpl must be")


def sse_texts(body: bytes, read: Any) -> str:
    """Return the text of a stream as these clients read it: lines that begin with `data:` and contain JSON."""
    found = []
    for line in body.decode().split("\n"):
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data.startswith("{"):
            found.append(read(json.loads(data)) or "")
    return "".join(found)


def test_minuet_sends_the_same_three_times(toy: Served, plain: Plain) -> None:
    body = {
        "model": "x", "stream": True, "prompt": PREFIX + LINE, "suffix": SUFFIX, "max_tokens": 16,
        "temperature": 0.7, "stop": ["\n\n"],
    }  # fmt: skip
    with ThreadPoolExecutor(3) as pool:
        replies = list(pool.map(lambda _: toy.post("/v1/completions", body, Authorization="Bearer key"), range(3)))
    texts = {sse_texts(reply.body, lambda data: data["choices"][0]["text"]) for reply in replies}
    assert texts == {plain(asked(temperature=0.7, stop=("\n\n",)))[0].text}


def test_minuet_codestral_and_continue_fim(toy: Served, plain: Plain) -> None:
    body = {"model": "codestral", "prompt": PREFIX + LINE, "suffix": SUFFIX, "max_tokens": 16, "stream": True}
    reply = toy.post("/v1/fim/completions", body, Authorization="Bearer key")
    assert sse_texts(reply.body, lambda data: data["choices"][0]["delta"]["content"]) == in_editor(plain)


def test_llm_ls(toy: Served, plain: Plain) -> None:
    body = {"model": "x", "prompt": FIM.format(PREFIX + LINE, SUFFIX), "stream": False, "max_tokens": 16}
    expected = plain(asked())[0].text
    assert toy.post("/v1/completions", {**body, "n": 1}).json["choices"][0]["text"] == expected
    ollama = {**body, "options": {"num_predict": 16}}
    assert toy.post("/api/generate", ollama).json["response"] == expected


def test_continue(toy: Served, plain: Plain) -> None:
    expected = plain(asked(stop=("zzz",)))[0].text
    prompt = FIM.format(PREFIX + LINE, SUFFIX)
    legacy = {"model": "x", "prompt": prompt, "max_tokens": 16, "stream": True, "stop": ["zzz"], "temperature": 0}
    reply = toy.post("/v1/completions", legacy)
    assert sse_texts(reply.body, lambda data: data["choices"][0]["text"]) == expected
    llama = {"prompt": prompt, "stream": True, "n_predict": 16, "stop": ["zzz"], "temperature": 0}
    assert sse_texts(toy.post("/completion", llama).body, lambda data: data["content"]) == expected
    assert ".Suffix" in toy.post("/api/show", {"name": "x"}).json["template"]
    ollama = {
        "model": "x", "prompt": PREFIX + LINE, "suffix": SUFFIX, "raw": False, "keep_alive": 1800,
        "options": {"num_predict": 16, "num_ctx": 4096, "stop": ["zzz"]},
    }  # fmt: skip
    lines = [json.loads(line) for line in toy.post("/api/generate", ollama).body.splitlines()]
    assert "".join(line["response"] for line in lines) == expected and lines[-1]["done"] is True


def test_zed(toy: Served, plain: Plain) -> None:
    expected = plain(asked(stop=("<|endoftext|>",)))[0].text
    stop = ["<|endoftext|>"]
    body = {
        "model": "x",
        "prompt": FIM.format(PREFIX + LINE, SUFFIX),
        "max_tokens": 16,
        "stop": stop,
        "temperature": 0.0,
    }
    reply = toy.post("/v1/completions", body).json
    assert reply["id"] and reply["choices"][0]["text"] == expected
    body = {**body, "raw": True, "stream": False, "options": {"num_predict": 16, "stop": stop, "temperature": 0.0}}
    reply = toy.post("/api/generate", body).json
    assert reply["response"] == expected and re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z$", reply["created_at"])


def test_llama_servers_prompts_of_ids_and_back(toy: Served, plain: Plain) -> None:
    ids = toy.post("/tokenize", {"content": PREFIX + LINE}).json["tokens"]
    assert toy.post("/detokenize", {"tokens": ids}).json["content"] == PREFIX + LINE
    expected = plain(asked(suffix=""))[0].text
    assert toy.post("/completion", {"prompt": ids, "n_predict": 16}).json["content"] == expected
    both = toy.post("/completion", {"prompt": [ids, PREFIX], "n_predict": 16}).json
    assert [one["content"] for one in both] == [expected, plain(asked(suffix="", prefix=PREFIX))[0].text]
    assert [one["index"] for one in both] == [0, 1]
    wrong = toy.post("/detokenize", {"tokens": [10**9]})
    assert (wrong.status, wrong.json["error"]["field"]) == (400, "tokens")


def test_llama_servers_stopping_word(toy: Served) -> None:
    text = toy.post("/completion", {"prompt": PREFIX, "n_predict": 30}).json["content"]
    word = text[8:11]
    stopped = toy.post("/completion", {"prompt": PREFIX, "n_predict": 30, "stop": ["never", word]}).json
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    assert stopped["content"] == text[: text.index(word)]


def test_tabby_agents_find_a_server_they_ask_about_telemetry(toy: Served) -> None:
    """They compare the first version in git_describe with 0.9.0 and skip older servers."""
    found = toy.ask("GET", "/v1/health").json
    version = re.search(r"\d+\.\d+\.\d+", found["version"]["git_describe"])
    assert found["model"] and version and tuple(map(int, version[0].split("."))) >= (0, 9, 0)
