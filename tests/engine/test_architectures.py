"""Speculation changes no text of any architecture, tokenizer kind and kind of proposer: `test_lossless` over PAIRS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from codespec.api.types import CompletionRequest
from tests.engine.test_lossless import check_worth_comparing, plain
from tests.kin import cousin
from tests.pairs import (
    Garbage,
    Mixed,
    Oracle,
    Silent,
    Troupe,
    build,
    model,
    prompts,
    run,
    texts,
    total,
    varied_requests,
)
from tests.toy_tokenizers import KINDS

# (target architecture, its tokenizer, drafter architecture, its tokenizer): a covering set, not the product.
PAIRS = (
    ("llama", "gpt2", "qwen3", "llama2"),
    ("qwen2", "llama3", "gpt2", "qwen"),
    ("qwen3", "qwen", "mistral", "unigram"),
    ("mistral", "llama2", "llama", "gpt2"),
    ("gemma2", "metaspace-first", "opt", "bytes"),
    ("gemma3", "unigram", "starcoder2", "neox"),
    ("gpt_neox", "neox", "gemma2", "metaspace-never"),
    ("phi3", "bytes", "gemma3", "llama3"),
    ("starcoder2", "metaspace-never", "phi3", "metaspace-first"),
    ("gpt2", "gpt2", "cohere", "unigram"),
    ("cohere", "llama3", "gpt_neox", "bytes"),
)
ALWAYS = {"float32": PAIRS[:9], "bfloat16": (PAIRS[7],)}  # the full runs cover the others


def cases() -> Iterator[object]:
    """Return all pairs in both dtypes."""
    for dtype, always in ALWAYS.items():
        for pair in PAIRS:
            marks = () if pair in always else pytest.mark.full
            yield pytest.param(*pair, dtype, id="-".join((*pair, dtype)), marks=marks)


every_case = pytest.mark.parametrize("architecture,kind,drafter,drafter_kind,dtype", list(cases()))


def test_the_pairs_cover_what_they_should() -> None:
    pairs = ALWAYS["float32"]
    assert len({pair[0] for pair in pairs}) >= 8 and len({pair[2] for pair in pairs}) >= 8
    assert {pair[1] for pair in pairs} == {pair[3] for pair in pairs} == set(KINDS)
    assert all(pair[0] != pair[2] and pair[1] != pair[3] for pair in pairs)


@every_case
def test_on_equals_off(architecture: str, kind: str, drafter: str, drafter_kind: str, dtype: str) -> None:
    target, requests = model(architecture, kind, dtype), varied_requests()
    expected = plain(architecture, kind, dtype)
    check_worth_comparing(expected)
    script = (target, requests, expected)
    troupe = Troupe(Oracle(*script), Mixed(*script), Mixed(*script, as_ids=True, seed=1), Garbage(), Silent())
    done = run(build(target, troupe), requests)
    assert texts(done) == texts(expected)
    sources = total(done).by_source
    assert sources["Oracle"].accepted >= 0.3 * sources["Oracle"].drafted > 0
    assert sources["Garbage"].accepted <= 0.1 * sources["Garbage"].drafted
    other = model(drafter, drafter_kind, dtype, seed=1)
    done = run(build(target, drafter=other, proposers="chain", draft_tokens=2), requests)
    assert texts(done) == texts(expected)
    assert total(done).by_source["draft_model"].drafted >= 50


def test_reuse_across_the_limit_of_a_rotary() -> None:
    """Phi-3's longrope rotates keys differently for requests that may exceed 64 positions, so such prefixes are not
    shared.
    """
    target, prefix = model("phi3", "bytes"), prompts(3)[2][:40]
    requests = [CompletionRequest(prefix=prefix, max_tokens=limit, seed=limit) for limit in (10, 40, 12, 44)]
    expected = [run(build(target), [request], speculate=False)[0] for request in requests]
    done = run(build(target, max_batch=1), requests, together=False)
    assert texts(done) == texts(expected)
    two = build(target, drafter=cousin("phi3"), max_batch=2)
    assert texts(run(two, requests)) == texts(run(two, requests, together=False)) == texts(expected)
    assert [choice.stats.cached_tokens > 0 for choice in done] == [False, False, True, True]
