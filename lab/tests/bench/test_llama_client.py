"""The client of llama.cpp's server: it parses answers and reports each failure as one sentence."""

from __future__ import annotations

import pytest
from codespec_lab.bench.llama_server import BrokenOffError, Facts, LlamaClient, LlamaServerError

from lab.tests.bench.fake_llama import FakeLlama, llama

__all__ = ["llama"]


def test_an_answer_has_ids_with_their_moments_and_text(llama: FakeLlama) -> None:
    found = LlamaClient(f"{llama.url}/").complete([1, 2], 9, stops=["\n\n"], seed=3)
    assert (found.ids, found.text) == ([5, 6, 7], "    return x\n    more")
    assert found.timings is not None and (found.timings.drafted, found.timings.accepted) == (0, 0)
    assert sorted(found.arrived) == found.arrived and len(found.arrived) == 3 and found.ended >= found.arrived[-1]
    body = llama.bodies[0]
    assert (body["prompt"], body["n_predict"], body["stop"], body["seed"]) == ([1, 2], 9, ["\n\n"], 3)
    assert body["cache_prompt"] is False and body["samplers"] == ["temperature"] and body["temperature"] == 0.0


def test_an_answer_may_end_at_an_id_of_the_clients(llama: FakeLlama) -> None:
    found = LlamaClient(llama.url).complete([1], 9, ends={5})
    assert found.ids == [5] and found.timings is None


def test_what_runs_is_read_from_the_server(llama: FakeLlama) -> None:
    client = LlamaClient(llama.url)
    assert client.facts() == Facts("model-q4.gguf", 5_000_000, "b1") and client.is_healthy()
    llama.props = {}
    assert client.facts() == Facts("unnamed", 5_000_000, "unknown build")


def test_what_fails_is_one_sentence(llama: FakeLlama) -> None:
    client = LlamaClient(llama.url)
    llama.refuses = True
    with pytest.raises(LlamaServerError, match=r"^llama-server refuses: the prompt is too long$"):
        client.complete([1], 9)
    llama.refuses = False
    for events, sentence in (
        ([{"error": {"message": "out of memory"}}], r"^llama-server fails: out of memory$"),
        ([{"content": "", "stop": True, "truncated": True}], r"^the prompt does not fit into llama-server: start it"),
    ):
        llama.events = list(events)
        with pytest.raises(LlamaServerError, match=sentence):
            client.complete([1], 9)
    for broken in ([], [{"content": None}], [{"tokens": [1]}], [{"content": "", "tokens": ["x"]}]):
        llama.events = list(broken)
        with pytest.raises(BrokenOffError, match=r"^llama-server breaks off \("):
            client.complete([1], 9)
    llama.props = ["another server"]
    with pytest.raises(LlamaServerError, match=r"^no llama-server answers: AttributeError"):
        client.facts()


def test_an_address_where_nobody_listens() -> None:
    client = LlamaClient("http://127.0.0.1:1")
    assert not client.is_healthy()
    with pytest.raises(LlamaServerError, match=r"^no llama-server answers: ConnectionRefusedError"):
        client.facts()


@pytest.mark.parametrize("url", ["file:///x", "127.0.0.1:80", "http://127.0.0.1:port", "http://[::1"])
def test_another_address_is_refused(url: str) -> None:
    with pytest.raises(LlamaServerError, match=r"^it is not an http address$"):
        LlamaClient(url)
