"""Speculation changes the time, never the text. `test_architectures` repeats it over architectures and tokenizers.

A target runs plainly, one request after another; then in a batch, with proposers that are right, wrong, or both, and
with real drafters of another architecture and tokenizer. Ids, text and ending must be equal without exception.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from codespec.api.types import Completion, Stats
from tests.kin import cousin, sibling
from tests.pairs import (
    Garbage,
    Mixed,
    Oracle,
    Scripted,
    Silent,
    build,
    model,
    prompts,
    run,
    texts,
    total,
    varied_requests,
)


@cache
def plain(architecture: str, kind: str, dtype: str) -> list[Completion]:
    """Return the target's own text: one request at a time, no drafts."""
    engine = build(model(architecture, kind, dtype), max_batch=1)
    assert engine.target.exact
    done = run(engine, varied_requests(), together=False, speculate=False)
    assert total(done).drafted == 0
    return done


def check_worth_comparing(done: list[Completion]) -> None:
    ids = [number for choice in done for number in choice.token_ids]
    assert len(ids) >= 100
    assert len(set(ids)) >= len(ids) // 8, "the target repeats itself: equality would prove little"
    assert len(set(texts(done[5:8]))) == 3, "alternatives of one prompt differ"


@pytest.mark.parametrize("as_ids", [False, True])
def test_full_partial_and_empty_agreement(as_ids: bool) -> None:
    target, requests, expected = model("llama", "gpt2"), varied_requests(), plain("llama", "gpt2", "float32")
    done = run(build(target, Mixed(target, requests, expected, as_ids=as_ids)), requests)
    assert texts(done) == texts(expected)
    check_all_kinds_of_rounds([total(done)])


@pytest.mark.parametrize("script", [Oracle, Garbage, Silent])
def test_one_script_alone(script: type[Scripted]) -> None:
    target, requests, expected = model("qwen3", "qwen"), varied_requests(), plain("qwen3", "qwen", "float32")
    proposer = Oracle(target, requests, expected) if script is Oracle else script()
    done = run(build(target, proposer), requests)
    assert texts(done) == texts(expected)
    rounds = total(done).rounds
    assert rounds < 0.8 * total(expected).rounds if script is Oracle else rounds >= 0.9 * total(expected).rounds


def check_all_kinds_of_rounds(stats: list[Stats]) -> None:
    """Assert that full, partial and no acceptance each occur in at least one round in twenty."""
    found = Stats()
    for item in stats:
        found.add(item)
    kinds = (found.rounds_full, found.rounds_partial, found.rounds_none)
    assert min(kinds) >= 0.05 * sum(kinds) and sum(kinds) >= 40, kinds


@pytest.mark.parametrize("batch,together", [(1, True), (2, True), (8, False)])
def test_one_at_a_time_and_together(batch: int, together: bool) -> None:
    target, other = model("llama", "gpt2"), model("qwen3", "llama2", seed=1)
    engine = build(target, drafter=other, proposers="chain", draft_tokens=2, max_batch=batch)
    done = run(engine, varied_requests(), together=together)
    assert texts(done) == texts(plain("llama", "gpt2", "float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drafters_that_often_agree(dtype: str) -> None:
    """Real drafters with the target's weights plus noise: ids are passed through, or only bytes."""
    stats = []
    for target, drafter in [
        (model("llama", "gpt2", dtype), sibling("llama", "gpt2", dtype, noise=0.03)),
        (model("llama", "bytes", dtype), cousin("llama", dtype, noise=0.03)),
    ]:
        requests = varied_requests(max_tokens=20)
        expected = run(build(target), requests, speculate=False)
        done = run(build(target, drafter=drafter), requests)
        assert texts(done) == texts(expected)
        stats.append(total(done))
    assert sum(s.by_source["draft_model"].drafted for s in stats) >= 500
    check_all_kinds_of_rounds(stats)


def test_the_suffix_proposer_on_text_that_repeats() -> None:
    """Lookup drafts, some right and some wrong: the prompt repeats itself."""
    target, other = model("opt", "gpt2"), model("qwen3", "llama2", seed=1)
    requests = [replace(request, prefix=request.prefix[:200] * 2) for request in varied_requests()]
    expected = run(build(target), requests, speculate=False)
    done = run(build(target, drafter=other, proposers="chain", draft_tokens=3), requests)
    assert texts(done) == texts(expected)
    assert total(done).by_source["suffix"].drafted >= 30


def test_the_prefill_chunk_changes_nothing() -> None:
    target, requests, expected = model("llama", "gpt2"), varied_requests(), plain("llama", "gpt2", "float32")
    engine = build(target, Mixed(target, requests, expected), prefill_chunk=16)
    done = run(engine, requests)
    assert texts(done) == texts(expected)
    tokens = sum(choice.stats.prompt_tokens for choice in done if choice.choice == 0)
    assert engine.metrics.steps >= tokens // 16


def test_cache_reuse_changes_nothing() -> None:
    """The same engine repeatedly, with prompts that share a prefix, alternately with and without speculation."""
    target = model("qwen2", "llama3")
    long = "".join(prompts(4))
    requests = [replace(request, prefix=long[: 100 + 45 * place]) for place, request in enumerate(varied_requests(n=1))]
    expected = [run(build(target), [request], speculate=False)[0] for request in requests]
    engine = build(target, Mixed(target, requests, expected), max_batch=2)
    cached = []
    for speculate in (True, False, True):
        done = run(engine, requests, together=speculate, speculate=speculate)
        assert texts(done) == texts(expected)
        cached.append(total(done).cached_tokens)
    assert cached[0] > 0 and cached[2] > 300


def test_shapes_stops_healing_and_filling_in() -> None:
    """Editor settings, on real models, in one batch."""
    target, other = model("llama", "qwen"), model("gpt2", "llama2", seed=1)
    editor = [{"shape": "line"}, {"shape": "block", "heal": True}, {"stop": ("e", "\n")}, {"heal": True, "n": 2}]
    requests = [
        replace(request, **editor[place % 4], suffix="\n    return x\n" if place > 3 else "", max_tokens=20)
        for place, request in enumerate(varied_requests(n=1))
    ]
    expected = run(build(target, max_batch=1), requests, together=False, speculate=False)
    assert {choice.finish_reason for choice in expected} == {"stop", "length"}
    for proposer in (Mixed(target, requests, expected, as_ids=True), Garbage()):
        assert texts(run(build(target, proposer), requests)) == texts(expected)
    assert texts(run(build(target, drafter=other, proposers="chain", draft_tokens=2), requests)) == texts(expected)
