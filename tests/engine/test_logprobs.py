"""Log-probabilities are the target's own, equal with and without speculation, and cost nothing unless requested."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
import torch

from codespec.api.types import Completion, CompletionRequest, RoundEvent, TokenLogprob
from codespec.errors import RequestError
from codespec.verify import verifier
from tests.pairs import Mixed, build, model, network_for, prompts, run, total, varied_requests
from tests.tiny_models import tiny_network


def asked(**change: object) -> list[CompletionRequest]:
    """Greedy, sampled, penalized and multiple-choice requests, all with log-probabilities."""
    return varied_requests(logprobs=3, **change)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_equal_with_speculation_on_and_off_to_the_bit(dtype: str) -> None:
    target = model("qwen3", "gpt2", dtype, seed=3)
    plain = run(build(target), asked(), together=False)
    engine = build(target, Mixed(target, asked(), plain, seed=1))
    fast = run(engine, asked())
    counted = total(fast)
    assert counted.rounds_full and counted.rounds_partial and counted.rounds_none
    assert [done.logprobs for done in fast] == [done.logprobs for done in plain]
    for done in fast:
        assert [told.id for told in done.logprobs] == list(done.token_ids)
        assert [told.place for told in done.logprobs] == list(range(len(done.token_ids)))


def test_what_transformers_says_of_the_same_tokens() -> None:
    request = asked()[4]  # sampled with filters and a penalty, which must not affect them
    (done,) = run(build(model("llama", "gpt2", seed=5)), [request])
    tokenizer = model("llama", "gpt2", seed=5).tokenizer
    ids = [*tokenizer.encode(request.prefix), *done.token_ids]
    expected = reference(ids)[-len(done.token_ids) - 1 : -1]
    for told, row in zip(done.logprobs, expected, strict=True):
        assert told.logprob == pytest.approx(float(row[told.id]), abs=1e-4)
        best = row.topk(3)
        assert [value for _, value in told.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert told.top[0][0] == int(best.indices[0])


@torch.no_grad()
def reference(ids: list[int]) -> torch.Tensor:
    """Return log-probabilities [length, vocabulary] from transformers' own attention with the same weights."""
    tokenizer = model("llama", "gpt2", seed=5).tokenizer
    network = tiny_network("llama", vocab_size=tokenizer.vocab_size, seed=5, attention="eager")
    network.load_state_dict(network_for("llama", tokenizer, 5).state_dict())
    return network(torch.tensor([ids])).logits[0].log_softmax(1)  # type: ignore[no-any-return]


def test_rounds_tell_the_same_in_their_order() -> None:
    target = model("qwen3", "gpt2", seed=3)
    request = replace(asked()[1], n=2)
    plain = run(build(target), [request])
    engine = build(target, Mixed(target, [request], plain, seed=2))
    told: dict[int, list[TokenLogprob]] = {0: [], 1: []}
    for event in engine.stream(request):
        if isinstance(event, RoundEvent):
            told[event.choice] += event.logprobs
    assert [tuple(told[done.choice]) for done in plain] == [done.logprobs for done in plain]
    assert all(done.logprobs for done in plain)


def test_who_does_not_ask_pays_nothing() -> None:
    engine = build(model("qwen3", "gpt2", seed=3))
    with mock.patch.object(verifier, "_own_logprobs", side_effect=AssertionError):
        done: list[Completion] = run(engine, varied_requests())
    assert not any(choice.logprobs for choice in done)


@pytest.mark.parametrize("number", [-1, 21])
def test_a_number_out_of_range_is_refused(number: int) -> None:
    with pytest.raises(RequestError, match=r"^logprobs must be between 0 and 20"):
        build(model("qwen3", "gpt2", seed=3)).complete([CompletionRequest(prefix="x", logprobs=number)])


def test_ready_made_ids_are_taken_as_they_are() -> None:
    engine = build(model("llama", "llama3", seed=2))
    tokenizer, text = engine.target.tokenizer, prompts()[3]
    ids = (*tokenizer.bos_ids, *tokenizer.encode(text))
    by_text, by_ids = run(
        engine, [CompletionRequest(prefix=text), CompletionRequest(prefix="", prompt_ids=ids)], max_tokens=9
    )
    assert by_ids.token_ids == by_text.token_ids and by_ids.stats.prompt_tokens == len(ids)


@pytest.mark.parametrize(
    "change",
    [{"prompt_ids": (1, 10**6)}, {"prompt_ids": (-1,)}, {"prompt_ids": (1,) * 500}, {"suffix": "x"}, {"heal": True}],
)
def test_ready_made_ids_that_cannot_be_served(change: dict[str, object]) -> None:
    engine, request = build(model("llama", "llama3", seed=2)), CompletionRequest(prefix="", prompt_ids=(1, 2))
    with pytest.raises(RequestError, match=r"^prompt_ids must be ") as caught:
        engine.complete([replace(request, **change)])
    assert caught.value.field == "prompt_ids"
