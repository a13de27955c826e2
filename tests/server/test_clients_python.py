"""Real clients from PyPI with the daemon: `openai` and `ollama`, as their users call them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import ollama
import openai
import pytest

from codespec.api.types import CompletionRequest
from tests.server.conftest import Plain
from tests.server.daemons import Served, serving, serving_load
from tests.server.talkers import chat_tokenizer, engine_of

PROMPT, SUFFIX = "import os\n\n\ndef first(values):\n", "\n\nprint(first([1, 2]))\n"
TALK: Any = [{"role": "system", "content": "Write Python."}, {"role": "user", "content": "the sum of two?"}]


def client_of(served: Served, token: str = "none") -> openai.OpenAI:
    """Create a client as a user does."""
    return openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key=token, max_retries=0)


@pytest.fixture
def client(toy: Served) -> Iterator[openai.OpenAI]:
    """Return the openai client of the toy daemon."""
    with client_of(toy) as client:
        yield client


@pytest.fixture
def llama(toy: Served) -> Iterator[ollama.Client]:
    """Return the ollama client of the toy daemon."""
    with closing(ollama.Client(host=f"http://127.0.0.1:{toy.port}")) as client:
        yield client


def asked(**change: Any) -> CompletionRequest:
    return CompletionRequest(**{"prefix": PROMPT, "max_tokens": 12, **change})


def test_openai_completions(client: openai.OpenAI, plain: Plain) -> None:
    done = client.completions.create(
        model="any", prompt=[PROMPT, "x = "], suffix=SUFFIX, max_tokens=12, n=2, temperature=0.8, seed=5, stop=["zzz"]
    )
    wanted = {"suffix": SUFFIX, "n": 2, "temperature": 0.8, "seed": 5, "stop": ("zzz",)}
    expected = [*plain(asked(**wanted)), *plain(asked(prefix="x = ", **wanted))]
    assert [choice.text for choice in done.choices] == [choice.text for choice in expected]
    assert done.usage is not None and done.usage.completion_tokens == 4 * 12 and done.model == "toy"


def test_openai_streams(client: openai.OpenAI, plain: Plain) -> None:
    chunks = list(
        client.completions.create(
            model="any", prompt=PROMPT, max_tokens=12, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == plain(asked())[0].text
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 12
    assert chunks[-2].choices[0].finish_reason == "length"


def test_openai_log_probabilities(client: openai.OpenAI, plain: Plain) -> None:
    (choice,) = client.completions.create(model="any", prompt=PROMPT, max_tokens=12, logprobs=2).choices
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [told.logprob for told in plain(asked(logprobs=2))[0].logprobs]


def test_openai_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").owned_by == "codespec"
    with pytest.raises(openai.NotFoundError, match="model other is not served here: use toy"):
        client.models.retrieve("other")


def test_openai_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature must be a number") as caught:
        client.completions.create(model="any", prompt=PROMPT, temperature=3)
    assert caught.value.param == "temperature" and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="has no chat template"):
        client.chat.completions.create(model="any", messages=TALK)
    with pytest.raises(openai.NotFoundError, match="path is refused"):
        client.embeddings.create(model="any", input="x")


def test_openai_tokens_and_a_daemon_that_starts() -> None:
    token = "a-token-long-enough"
    with serving(engine_of(chat_tokenizer())) as served, client_of(served, token) as client:
        assert client.models.list().data, "a token that nobody asked for does no harm"
    with serving_load(_never, ready=False, token=token) as served:
        with client_of(served, "another-token-here") as wrong, pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        with client_of(served, token) as client, pytest.raises(openai.InternalServerError, match=r"starting|not load"):
            client.models.list()


def _never(progress: object) -> Any:
    raise RuntimeError


def test_openai_chat() -> None:
    with serving(engine_of(chat_tokenizer())) as served, client_of(served) as client:
        whole = client.chat.completions.create(
            model="any", messages=TALK, max_completion_tokens=12, logprobs=True, top_logprobs=2, seed=1, temperature=0.7
        )
        (choice,) = whole.choices
        assert choice.message.role == "assistant" and choice.logprobs is not None and choice.logprobs.content
        assert len(choice.logprobs.content[0].top_logprobs) == 2
        spelled = b"".join(bytes(told.bytes or ()) for told in choice.logprobs.content).decode("utf-8", "replace")
        assert spelled.startswith(choice.message.content or "?")
        chunks = list(
            client.chat.completions.create(
                model="any",
                messages=TALK,
                max_completion_tokens=12,
                stream=True,
                seed=1,
                temperature=0.7,
                logprobs=True,
            )
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == choice.message.content
        told = [one for chunk in chunks if (own := chunk.choices[0].logprobs) for one in own.content or ()]
        assert [one.logprob for one in told] == [one.logprob for one in choice.logprobs.content]


def test_ollama_generates(llama: ollama.Client, plain: Plain) -> None:
    expected = plain(asked(suffix=SUFFIX))[0].text
    options = {"num_predict": 12}
    whole = llama.generate(model="any", prompt=PROMPT, suffix=SUFFIX, options=options)
    assert whole.response == expected and whole.done and whole.eval_count == 12
    parts = list(llama.generate(model="any", prompt=PROMPT, suffix=SUFFIX, options=options, stream=True))
    assert "".join(part.response for part in parts) == expected
    assert llama.generate(model="any").done_reason == "load"


def test_ollama_asks_about_the_model(llama: ollama.Client) -> None:
    assert [model.model for model in llama.list().models] == ["toy"]
    about = llama.show("toy")
    assert about.capabilities == ["completion", "insert"] and ".Suffix" in (about.template or "")
    assert about.modelinfo is not None and about.modelinfo["codespec.context_length"] == 512
    assert llama.ps().models[0].context_length == 512


def test_ollama_errors(llama: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match=r"options.temperature must be a number") as caught:
        llama.generate(model="any", prompt=PROMPT, options={"temperature": -1})
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="only text is completed"):
        llama.generate(model="any", prompt=PROMPT, format="json")
