"""OpenAI's predicted outputs and the language server's draft: the same text sooner, counted in the usage.

An unusable prediction is rejected with one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from codespec.api.limits import MAX_PREDICTION
from codespec.api.types import Completion, CompletionRequest, DoneEvent, Stats, TextEvent
from codespec.engine.job import answers, follow_up
from tests.server.daemons import Served, serving
from tests.server.talkers import chat_tokenizer, engine_of

PROMPT = "import os\n\n\ndef first(values):\n"
TALK: Any = [{"role": "user", "content": "the sum of two?"}]
OWN, COMPLETIONS, CHAT = "/v1/codespec/complete", "/v1/completions", "/v1/chat/completions"
TOKENS = 24
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": PROMPT, "max_tokens": TOKENS},
    CHAT: {"messages": TALK, "max_tokens": TOKENS},
}
NONE = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}


@pytest.fixture(scope="module")
def talker() -> Iterator[Served]:
    """Run a daemon that chats and drafts from predictions only."""
    with serving(engine_of(chat_tokenizer(), proposers="prediction", draft_tokens=4, policy="fixed")) as served:
        yield served


def text_of(choice: dict[str, Any]) -> str:
    """Return a choice's text on either endpoint."""
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def post(served: Served, path: str, **body: Any) -> Any:
    reply = served.post(path, {**BODIES[path], **body})
    assert reply.status == 200, reply.body
    return reply.json


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_what_was_predicted_is_counted(talker: Served, path: str) -> None:
    plain = post(talker, path)
    assert plain["usage"]["completion_tokens_details"] == NONE
    text = text_of(plain["choices"][0])
    halves = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]
    for content in (text, halves):
        reply = post(talker, path, prediction={"type": "content", "content": content})
        assert text_of(reply["choices"][0]) == text
        details = reply["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] >= max(TOKENS // 2, 2 * details["rejected_prediction_tokens"])
        assert reply["usage"]["completion_tokens"] == TOKENS
    wrong = post(talker, path, prediction={"type": "content", "content": "?" + text[::-1]})
    assert text_of(wrong["choices"][0]) == text
    details = wrong["usage"]["completion_tokens_details"]
    assert details["rejected_prediction_tokens"] > details["accepted_prediction_tokens"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_the_same_in_a_streams_usage(talker: Served, path: str) -> None:
    text = text_of(post(talker, path)["choices"][0])
    body = {**BODIES[path], "stream": True, "stream_options": {"include_usage": True}}
    whole = post(talker, path, prediction={"type": "content", "content": text})["usage"]
    events = [
        data for _, data in talker.post(path, {**body, "prediction": {"type": "content", "content": text}}).events
    ]
    assert events.pop() == "[DONE]"
    assert events.pop()["usage"]["completion_tokens_details"] == whole["completion_tokens_details"] != NONE


def test_all_choices_are_counted(talker: Served) -> None:
    sampled = {"n": 3, "temperature": 0.8, "seed": 2}
    plain = post(talker, COMPLETIONS, **sampled)
    texts = [text_of(choice) for choice in plain["choices"]]
    reply = post(talker, COMPLETIONS, **sampled, prediction={"type": "content", "content": texts[1]})
    assert [text_of(choice) for choice in reply["choices"]] == texts
    assert reply["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] >= TOKENS // 2


def test_the_openai_client(talker: Served) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{talker.port}/v1", api_key="none", max_retries=0) as client:
        plain = client.chat.completions.create(model="any", messages=TALK, max_tokens=TOKENS)
        text = plain.choices[0].message.content
        assert text
        done = client.chat.completions.create(
            model="any", messages=TALK, max_tokens=TOKENS, prediction={"type": "content", "content": text}
        )
    assert done.choices[0].message.content == text
    assert done.usage is not None and done.usage.completion_tokens_details is not None
    assert (done.usage.completion_tokens_details.accepted_prediction_tokens or 0) >= TOKENS // 2


def test_the_language_servers_draft(talker: Served) -> None:
    body = {"prefix": PROMPT, "max_tokens": TOKENS, "shape": "raw"}
    events = talker.post(OWN, body).events
    text = "".join(data["text"] for name, data in events if name == "text")
    events = talker.post(OWN, {**body, "draft": text}).events
    assert "".join(data["text"] for name, data in events if name == "text") == text
    counts = events[-1][1]["stats"]["by_source"]["prediction"]
    assert counts["accepted"] >= TOKENS // 2
    assert {data["source"] for name, data in events if name == "round" and data["drafted"]} == {"prediction"}


TOO_LONG = "x" * (MAX_PREDICTION + 1)
WRONG = [
    ("x", "prediction must be an object."),
    ({}, "prediction.type is missing: send it."),
    ({"type": "text", "content": "x"}, 'prediction.type must be "content".'),
    ({"type": 1, "content": "x"}, "prediction.type must be text."),
    ({"type": "content"}, "prediction.content is missing: send it."),
    ({"type": "content", "content": 5}, "prediction.content must be text."),
    ({"type": "content", "content": TOO_LONG}, "prediction.content must be at most 262144 characters long."),
    (
        {"type": "content", "content": [{"type": "text", "text": TOO_LONG}]},
        "prediction.content must be at most 262144 characters long.",
    ),
    (
        {"type": "content", "content": [{"type": "image_url", "text": "x"}]},
        "prediction.content must be text, whole or in parts of type text.",
    ),
    ({"type": "content", "content": [1]}, "prediction.content must be a list of at most 256 objects."),
    ({"type": "content", "content": "\ud800"}, "prediction.content must be valid text, without lone surrogates."),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("prediction,sentence", WRONG)
def test_what_cannot_be_used_is_refused(talker: Served, path: str, prediction: Any, sentence: str) -> None:
    reply = talker.post(path, {**BODIES[path], "prediction": prediction})
    error = reply.json["error"]
    assert (reply.status, error["message"]) == (400, sentence)
    assert error["field"] == sentence.split()[0]


@pytest.mark.parametrize("draft,what", [(1, "text."), ([], "text."), (TOO_LONG, "at most 262144 characters long.")])
def test_what_is_no_draft(talker: Served, draft: Any, what: str) -> None:
    reply = talker.post(OWN, {"prefix": PROMPT, "draft": draft})
    assert (reply.status, reply.json["error"]["message"]) == (400, f"draft must be {what}")


def test_what_is_prefetched_needs_no_prediction() -> None:
    """The text after an accepted completion is another text, and a prefetched one is served whatever the prediction."""
    request = CompletionRequest(prefix="x = ", document="d", prediction="1\n")
    done = Completion("1\n", (1,), "stop", Stats())
    following = follow_up(request, [TextEvent(0, "1\n"), DoneEvent(0, done)])
    assert following is not None and following.request == CompletionRequest(prefix="x = 1\n", document="d")
    assert answers(following.request, CompletionRequest(prefix="x = 1\n", document="d", prediction="y"))
