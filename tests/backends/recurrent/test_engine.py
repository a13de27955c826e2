"""Whole engines with recurrent targets and drafters: the text of plain decoding, at a bounded cost."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch

from codespec.api.types import Completion, CompletionRequest
from codespec.backends.torch import model as torch_model
from codespec.backends.torch import recurrent_layers as gated_delta
from codespec.engine.engine import Engine
from codespec.proposers.draft_model import DraftModel
from codespec.sequence import Cap, Draft, Sequence
from codespec.text.tokenizer import TextTokenizer
from tests.kin import cousin, sibling
from tests.pairs import (
    Garbage,
    Mixed,
    Oracle,
    Scripted,
    Troupe,
    build,
    model,
    network_for,
    run,
    texts,
    total,
    varied_requests,
    wrapped,
)
from tests.toy_tokenizers import held_out_texts, toy_backend, toy_tokenizer

KIND = "gpt2"
HYBRIDS = ["qwen3_5"]
# Each kind of layer once and one model in every format; the bits of each model in each format: test_layers.
CASES = [
    *((name, "float32") for name in ("qwen3_5", "olmo_hybrid", "lfm2")),
    ("qwen3_5", "bfloat16"),
    ("qwen3_5", "native"),
]
NEAR = 64  # tokens that a keystroke may read again


@cache
def plain(architecture: str, dtype: str = "float32") -> list[Completion]:
    engine = build(model(architecture, KIND, dtype), max_batch=1)
    assert engine.target.exact, engine.notes
    return run(engine, varied_requests(), together=False, speculate=False)


@pytest.mark.parametrize(("architecture", "dtype"), CASES)
def test_on_equals_off(architecture: str, dtype: str) -> None:
    """Eight together, greedy and sampled, with drafts that are right, wrong or both; the first also one at a time."""
    target, requests, expected = model(architecture, KIND, dtype), varied_requests(), plain(architecture, dtype)
    script = (target, requests, expected)
    assert len({number for choice in expected for number in choice.token_ids}) >= 12
    for batch in (1, 8) if (architecture, dtype) == CASES[0] else (8,):
        troupe = Troupe(Oracle(*script), Mixed(*script), Mixed(*script, as_ids=True, seed=1), Garbage())
        done = run(build(target, troupe, max_batch=batch), requests)
        assert texts(done) == texts(expected)
        assert total(done).by_source["Oracle"].accepted > 0
    kinds = total(done)
    assert min(kinds.rounds_partial + kinds.rounds_full, kinds.rounds_none) > 5


@pytest.mark.parametrize("architecture", ["qwen3_5", "olmo_hybrid", "lfm2"])
def test_the_text_is_that_of_generate(architecture: str) -> None:
    target = model(architecture, KIND)
    network = network_for(architecture, toy_tokenizer(KIND), attention="eager")
    ends = sorted(target.tokenizer.model_eos_ids)
    for request in varied_requests(n=1, temperature=0.0, repetition_penalty=1.0, max_tokens=16)[:2]:
        ids = torch.tensor([target.tokenizer.encode(request.prefix)])
        out = network.generate(ids, max_new_tokens=16, do_sample=False, eos_token_id=ends, pad_token_id=ends[0])
        wanted = tuple(token for token in out[0, ids.shape[1] :].tolist() if token not in ends)
        done = build(target, Garbage()).complete([request])[0]
        assert tuple(token for token in done.token_ids if token not in ends) == wanted


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_as_a_drafter(architecture: str) -> None:
    """With the target's weights and noise: sharing its ids, and spelling bytes with others."""
    for kind, drafter in ((KIND, sibling(architecture, KIND)), ("bytes", cousin(architecture))):
        target, requests = model(architecture, kind), varied_requests(max_tokens=20)
        expected = run(build(target), requests, speculate=False)
        done = run(build(target, drafter=drafter), requests)
        assert texts(done) == texts(expected)
        found = total(done).by_source["draft_model"]
        assert found.accepted >= 0.3 * found.drafted > 30


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_a_drafters_logits_are_those_of_a_fresh_prefill(architecture: str) -> None:
    """After any acceptance the drafter continues from the right state: it drafts what a fresh one drafts."""
    target, requests = model(architecture, KIND), varied_requests(n=1, max_tokens=40)
    engine = build(target, drafter=sibling(architecture, KIND, noise=0.05), max_batch=3)
    twin = build(target, drafter=sibling(architecture, KIND, noise=0.05, twin=1), max_batch=3).proposers[0]
    drafter = engine.proposers[0]
    assert isinstance(drafter, DraftModel) and isinstance(twin, DraftModel)
    drafted, propose = [], drafter.propose

    def compare(sequences: list[Sequence], caps: list[Cap]) -> list[Draft]:
        drafts = propose(sequences, caps)
        for sequence, cap, draft in zip(sequences, caps, drafts, strict=True):
            if random.Random(len(drafted)).random() < 0.3 and draft.ids:
                fresh = twin.propose([sequence], [cap])[0]
                assert (fresh.ids, fresh.text) == (draft.ids, draft.text)
                twin.release(sequence, "stop")
                twin._texts.clear()
            drafted.append(draft)
        return drafts

    drafter.propose = compare  # type: ignore[assignment, method-assign]
    run(engine, requests)
    assert len(drafted) > 40


class Wrong(Scripted):
    """Drafts five ids that the target never chooses."""

    def draft(self, sequence: Sequence, cap: Cap) -> Draft:
        """Return ids that were not the answer of a plain run."""
        return Draft(b"?" * 5, self.name, (5,), (1.0,), (self.never,) * 5)

    never = 0


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_two_hundred_rejecting_rounds_cost_the_same(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, steps = model(architecture, KIND), [0]
    monkeypatch.setattr(gated_delta, "step", _counted(gated_delta.step, steps))
    request = CompletionRequest(prefix=varied_requests()[0].prefix, max_tokens=230, shape="raw")
    message = {token for token in build(target).complete([request])[0].token_ids}
    proposer = Wrong()
    proposer.never = next(number for number in range(40, 400) if number not in message)
    engine = build(target, proposer, context=512)
    (sequence,) = engine.submit(request)
    costs = []
    while engine.queue.jobs and len(costs) < 215:
        steps[0] = 0
        engine.step()
        costs.append(steps[0])
    assert len(costs) >= 200 and sequence.stats.rounds_none >= 200
    assert set(costs[2:200]) == {len(target.states) * 7}, "an accepted row is repeated, then six are new"


def _counted(step, steps):  # type: ignore[no-untyped-def]
    def count(*given: object) -> None:
        steps[0] += 1
        step(*given)

    return count


@cache
def spelling(order: str) -> TextTokenizer:
    config = {"codespec_fim_orders": ["psm", order]}
    return TextTokenizer.from_backend(toy_backend("gpt2"), eos_ids=toy_tokenizer("gpt2").model_eos_ids, config=config)


def keystroke(engine: Engine, before: str, behind: str, heal: bool = True) -> Completion:
    request = CompletionRequest(
        prefix=before,
        suffix=behind,
        max_tokens=24,
        shape="block",
        heal=heal,
        document="a",
        path="a.py",
        temperature=0.0,
    )
    return engine.complete([request])[0]


@pytest.mark.parametrize("order", ["psm", "spm", "no states kept"])
@pytest.mark.parametrize("architecture", HYBRIDS)
def test_a_keystroke_reads_fewer_than_64_tokens_again(
    architecture: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if order == "no states kept":
        monkeypatch.setattr(torch_model, "branching_points", lambda ids, special_ids: [])
    tokenizer = spelling(order if order == "spm" else "psm")
    target = wrapped(network_for(architecture, tokenizer), tokenizer, architecture)
    engine, fresh = build(target, context=1024), []
    text = held_out_texts()[0]
    behind = text[4000:4300] if order in ("psm", "spm") else ""
    typed = "self.one(x)\n"
    reread = []
    for end in range(len(typed)):
        before = text[3000:4000] + typed[:end]
        done = keystroke(engine, before, behind)
        fresh.append((before, done.text))
        tail = len(tokenizer.encode(behind)) + 3 if order == "psm" else 0  # it follows what was typed
        reread.append(done.stats.prompt_tokens - done.stats.cached_tokens - tail)
    assert engine.target.exact and (max(reread[1:]) < NEAR) == (order != "no states kept"), reread
    assert fresh[0][1] or fresh[-1][1]
    for before, message in fresh[::9]:
        assert keystroke(build(target, context=1024), before, behind).text == message


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_choices_share_their_prompt(architecture: str) -> None:
    target = model(architecture, KIND)
    prefix = held_out_texts()[0][2500:3300]
    request = CompletionRequest(prefix=prefix, max_tokens=16, n=4, temperature=0.8, seed=3)
    expected = run(build(target, max_batch=1), [request], speculate=False)
    done = run(build(target, max_batch=4), [request])
    assert texts(done) == texts(expected)
    cached = [choice.stats.cached_tokens for choice in done[1:]]
    assert min(cached) == done[0].stats.prompt_tokens - 1, cached


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_states_count_in_the_size_of_the_cache(architecture: str) -> None:
    target = model(architecture, KIND)
    target.allocate(3, 512)
    cache = target.cache
    assert cache is not None and cache.states is not None
    held = [*cache.keys.values(), *cache.values.values()]
    held += [part for layer in cache.states.layers.values() for part in (layer.states, layer.rows, layer.before)]
    assert cache.nbytes == sum(part.numel() * part.element_size() for part in held)
