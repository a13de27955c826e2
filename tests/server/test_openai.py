"""OpenAI's legacy endpoint beyond one prompt: lists and ids, echo, best_of, log-probabilities, truncation notes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codespec.api.types import Completion, CompletionRequest, Snippet, TokenLogprob
from codespec.server.dialects.shared import TokenNames, TokenPlacer
from tests.server.conftest import Plain
from tests.server.daemons import Served, serving
from tests.server.talkers import engine_of, without_fim
from tests.toy_tokenizers import toy_tokenizer

PROMPT, OTHER = "def first(values):\n    for", "import os\n\n\nclass"
PATH = "/v1/completions"


def asked(**change: Any) -> CompletionRequest:
    return CompletionRequest(**{"prefix": PROMPT, "max_tokens": 10, **change})


def post(served: Served, **body: Any) -> Any:
    """Return the reply's JSON."""
    reply = served.post(PATH, {"prompt": PROMPT, "max_tokens": 10, **body})
    assert reply.status == 200, reply.body
    return reply.json


def pieces(served: Served, **body: Any) -> dict[int, list[Any]]:
    """Return the choices of a streamed reply by index, in order."""
    events = [data for _, data in served.post(PATH, {"max_tokens": 10, **body, "stream": True}).events]
    assert events.pop() == "[DONE]"
    found: dict[int, list[Any]] = {}
    for event in events:
        for choice in event["choices"]:
            found.setdefault(choice["index"], []).append(choice)
    return found


def texts(reply: Any) -> list[str]:
    """Return the choices' texts; their indices must count from 0."""
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(reply["choices"])))
    return [choice["text"] for choice in reply["choices"]]


def test_several_prompts_are_numbered_through(toy: Served, plain: Plain) -> None:
    sampled = {"n": 2, "temperature": 0.9, "seed": 4}
    expected = [done for prefix in (PROMPT, OTHER) for done in plain(asked(prefix=prefix, **sampled))]
    reply = post(toy, prompt=[PROMPT, OTHER], **sampled)
    assert texts(reply) == [done.text for done in expected]
    prompts = expected[0].stats.prompt_tokens + expected[2].stats.prompt_tokens
    assert reply["usage"]["prompt_tokens"] == prompts and reply["usage"]["completion_tokens"] == 40
    streamed = pieces(toy, prompt=[PROMPT, OTHER], **sampled)
    assert {number: "".join(choice["text"] for choice in own) for number, own in streamed.items()} == {
        number: done.text for number, done in enumerate(expected)
    }


def test_prompts_of_token_ids(toy: Served, plain: Plain) -> None:
    tokenizer = toy_tokenizer("gpt2")
    ids = [tokenizer.encode(prefix) for prefix in (PROMPT, OTHER)]
    expected = [plain(asked(prefix=prefix))[0].text for prefix in (PROMPT, OTHER)]
    assert texts(post(toy, prompt=ids[0])) == expected[:1]
    assert texts(post(toy, prompt=ids)) == expected
    assert texts(post(toy, prompt=[PROMPT, ids[1]])) == expected
    wrong = toy.post(PATH, {"prompt": [1, 10**7]})
    assert (wrong.status, wrong.json["error"]["field"]) == (400, "prompt")
    both = toy.post(PATH, {"prompt": ids[0], "suffix": "x"}).json["error"]
    assert both["field"] == "suffix" and "token ids" in both["message"]


def test_echo_repeats_the_prompt(toy: Served, plain: Plain) -> None:
    ids = toy_tokenizer("gpt2").encode(PROMPT)
    expected = PROMPT + plain(asked())[0].text
    assert texts(post(toy, echo=True)) == texts(post(toy, echo=True, prompt=ids)) == [expected]
    (own,) = pieces(toy, prompt=PROMPT, echo=True).values()
    assert "".join(choice["text"] for choice in own) == expected
    assert toy.post(PATH, {"prompt": PROMPT, "echo": True, "logprobs": 1}).json["error"]["field"] == "logprobs"


def test_best_of_tells_the_likeliest(toy: Served, plain: Plain) -> None:
    sampled = {"temperature": 1.1, "seed": 9}
    written = plain(asked(n=6, logprobs=0, **sampled))
    ranked = sorted(written, key=mean, reverse=True)
    assert ranked[:2] != written[:2], "another seed would show more"
    reply = post(toy, n=2, best_of=6, **sampled)
    assert texts(reply) == [done.text for done in ranked[:2]]
    assert reply["usage"]["completion_tokens"] == 60
    assert reply["choices"][0]["logprobs"] is None
    wrong = toy.post(PATH, {"prompt": PROMPT, "n": 2, "best_of": 3, "stream": True})
    assert (wrong.status, wrong.json["error"]["field"]) == (400, "best_of")


def mean(done: Completion) -> float:
    return sum(told.logprob for told in done.logprobs) / len(done.logprobs)


def test_log_probabilities_are_the_targets_own(toy: Served, plain: Plain) -> None:
    (expected,) = plain(asked(logprobs=3))
    (choice,) = post(toy, logprobs=3)["choices"]
    told, names = choice["logprobs"], TokenNames(toy_tokenizer("gpt2"))
    assert told["tokens"] == [names.text(one.id) for one in expected.logprobs]
    assert told["token_logprobs"] == [one.logprob for one in expected.logprobs]
    for top, one in zip(told["top_logprobs"], expected.logprobs, strict=True):
        assert max(top, key=top.__getitem__) == names.text(one.top[0][0]) and 3 <= len(top) <= 4
        assert top[names.text(one.id)] == one.logprob
    for token, start in zip(told["tokens"], told["text_offset"], strict=True):
        assert token.startswith("bytes:") or choice["text"][start:].startswith(token)
    none = post(toy, logprobs=0)["choices"][0]["logprobs"]
    assert [list(top) for top in none["top_logprobs"]] == [[token] for token in none["tokens"]]


@pytest.mark.parametrize("change", [{}, {"stop": ["e", " "]}, {"temperature": 0.9, "n": 3, "seed": 2}])
def test_streamed_log_probabilities_come_with_their_text(toy: Served, change: dict[str, Any]) -> None:
    whole = post(toy, logprobs=2, max_tokens=30, **change)["choices"]
    streamed = pieces(toy, prompt=PROMPT, logprobs=2, max_tokens=30, **change)
    for choice in whole:
        own = streamed[choice["index"]]
        assert "".join(piece["text"] for piece in own) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for piece in own if piece["logprobs"] for value in piece["logprobs"][name]] == values
        shown = 0
        for piece in own:
            shown += len(piece["text"])
            assert all(start < shown for start in (piece["logprobs"] or {"text_offset": []})["text_offset"])


def test_tokens_behind_the_text_and_half_characters_are_not_told() -> None:
    tokenizer = toy_tokenizer("bytes")
    ids = [tokenizer.vocab["a"], *tokenizer.encode("é"), tokenizer.vocab["<|endoftext|>"], *tokenizer.encode("b")]
    told = [TokenLogprob(place, number, -1.0) for place, number in enumerate(ids)]
    placer = TokenPlacer(TokenNames(tokenizer))
    placer.add(told[:3])
    assert [start for _, start in placer.take(1)] == [0]
    placer.add(told[1:])  # part of it is known already
    assert [(one.place, start) for one, start in placer.take(2)] == [(1, 1), (2, 1)]
    assert placer.take(2) == [] and [one.place for one, _ in placer.take(3)] == [3, 4]
    names = TokenNames(tokenizer)
    assert [names.text(number) for number in ids] == ["a", "bytes:\\xc3", "bytes:\\xa9", "<|endoftext|>", "b"]


def test_llama_probabilities(toy: Served, plain: Plain) -> None:
    (expected,) = plain(asked(logprobs=2))
    reply = toy.post("/completion", {"prompt": PROMPT, "n_predict": 10, "n_probs": 2, "return_tokens": True}).json
    told = reply["completion_probabilities"]
    assert [one["id"] for one in told] == list(expected.token_ids) == reply["tokens"]
    assert [one["logprob"] for one in told] == [one.logprob for one in expected.logprobs]
    assert all(len(one["top_logprobs"]) == 2 and bytes(one["bytes"]) for one in told)
    wrong = toy.post("/completion", {"prompt": PROMPT, "n_probs": 2, "stream": True})
    assert (wrong.status, wrong.json["error"]["field"]) == (400, "n_probs")


def test_a_cut_and_left_out_files_are_told(toy: Served, plain: Plain) -> None:
    reply = post(toy, max_tokens=9999, stop=["\n"])
    assert reply["notes"] == ["max_tokens was cut to 256, half of the context: the prompt needs the other half"]
    assert "notes" not in post(toy)
    extra = [{"filename": "/home/me/.env", "text": "KEY=1\n"}, {"filename": "b.py", "text": "b = 1\n"}]
    body = {"input_prefix": PROMPT, "input_suffix": "\n", "n_predict": 8, "input_extra": extra}
    told = toy.post("/infill", body).json
    assert told["notes"][0] == "1 of 2 other files may hold secrets and were left out"
    request = asked(suffix="\n", snippets=(Snippet("b.py", "b = 1\n"),), shape="auto", heal=True, max_tokens=8)
    assert told["content"] == plain(request)[0].text
    streamed = toy.post("/api/generate", {"prompt": PROMPT, "options": {"num_predict": 3, "num_ctx": 9}})
    assert json.loads(streamed.body.splitlines()[-1])["notes"][0].startswith("options.num_ctx is not used")


def test_a_model_that_cannot_fill_in_says_so() -> None:
    with serving(engine_of(without_fim())) as served:
        for path, status in (("/v1/completions", 400), ("/v1/fim/completions", 400), ("/api/generate", 400)):
            reply = served.post(path, {"prompt": PROMPT, "suffix": "\nx = 1\n"})
            error = reply.json if path.startswith("/api") else reply.json["error"]
            assert (reply.status, error["field"]) == (status, "suffix"), reply.body
        infill = served.post("/infill", {"input_prefix": PROMPT, "input_suffix": "\n"})
        assert (infill.status, infill.json["error"]["type"]) == (501, "not_supported_error")
        assert "not supported by this model (the vocabulary" in infill.json["error"]["message"]
        tabby = served.post("/v1/completions", {"segments": {"prefix": PROMPT, "suffix": "\n"}}).json
        assert "the text after the cursor was not used" in tabby["notes"][0]
        assert served.post("/v1/completions", {"prompt": PROMPT}).status == 200
        assert served.post("/api/show", {"model": "toy"}).json["capabilities"] == ["completion"]
