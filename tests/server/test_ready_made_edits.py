"""Next-edit clients over the wire, by the shape of their requests: what the engine gets, at every text endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from codespec.api.types import CompletionRequest
from tests.server.daemons import Served, serving
from tests.server.fakes import FakeEngine
from tests.text.test_edit_formats import WINDOW, sweep, zeta_1, zeta_2
from tests.text.test_edit_prompt import tokenizer

V1 = "/v1/completions"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Served, FakeEngine]]:
    engine = FakeEngine(answer=lambda request: "text")
    engine.target.tokenizer = tokenizer()
    with serving(engine, context=4096) as daemon:
        yield daemon, engine


def sent(served: tuple[Served, FakeEngine], path: str, body: dict[str, Any]) -> CompletionRequest:
    daemon, engine = served
    engine.submitted.clear()
    reply = daemon.post(path, body)
    assert reply.status == 200, reply.body
    (request,) = engine.submitted
    return request


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (V1, {"prompt": sweep(), "stop": ["<|file_sep|>", "<|endoftext|>"], "max_tokens": 512, "n": 1, "echo": False}),
        ("/completion", {"prompt": sweep(), "n_predict": 512}),
        ("/api/generate", {"model": "toy", "prompt": sweep(), "raw": True, "stream": False}),
        ("/v1/fim/completions", {"prompt": sweep()}),
        (V1, {"debug_options": {"raw_prompt": sweep()}}),
    ],
)
def test_every_text_endpoint_reads_sweep_s_prompt(
    served: tuple[Served, FakeEngine], path: str, body: dict[str, Any]
) -> None:
    request = sent(served, path, body)
    assert list(request.prompt_ids) == tokenizer().encode_with_specials(sweep())
    assert request.prediction == WINDOW and request.ends_at_control and not request.heal


def test_stops_of_the_client_stay(served: tuple[Served, FakeEngine]) -> None:
    request = sent(served, V1, {"prompt": zeta_2(), "stop": ["\n\n\n", ">>>>>>> UPDATED"]})
    assert request.stop == ("\n\n\n", ">>>>>>> UPDATED")
    assert sent(served, V1, {"prompt": zeta_1()}).stop[-1] == "<|editable_region_end|>"


def test_the_client_s_own_prediction_wins(served: tuple[Served, FakeEngine]) -> None:
    own = {"type": "content", "content": "mine"}
    assert sent(served, V1, {"prompt": sweep(), "prediction": own}).prediction == "mine"


def test_a_prompt_that_is_far_too_long_is_plain_text(served: tuple[Served, FakeEngine]) -> None:
    request = sent(served, V1, {"prompt": "<|file_sep|>b.py\n" + "x = 1\n" * 8000 + sweep()})
    assert not request.prompt_ids and not request.prediction


def test_ids_that_do_not_fit_name_the_prompt(toy: Served) -> None:
    long = "<|file_sep|>b.py\n" + "x = 1\n" * 400 + sweep()
    reply = toy.post(V1, {"prompt": long, "max_tokens": 64})
    assert reply.status == 400 and reply.json["error"]["field"] == "prompt"
