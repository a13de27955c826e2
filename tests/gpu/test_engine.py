"""Speculation on a GPU: on = off bit for bit in `exact` mode; in `fast` mode no choice has a regret above 0.2 nat."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from codespec.api.types import Completion
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from tests.gpu.models import behind_the_seam, gpu
from tests.pairs import (
    CONTEXT,
    Garbage,
    Mixed,
    Oracle,
    Silent,
    Troupe,
    build,
    network_for,
    run,
    texts,
    total,
    varied_requests,
)
from tests.pairs import (
    model as cpu_model,
)
from tests.regret import TIE, in_ids, regret
from tests.toy_tokenizers import toy_tokenizer

pytestmark = gpu
CASES = [("llama", "gpt2"), ("qwen2", "llama3"), ("gemma2", "llama2"), ("phi3", "bytes")]
DTYPES = ["float32", "bfloat16"]
each_case = pytest.mark.parametrize("architecture,kind", CASES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@cache
def gpu_model(architecture: str, kind: str, dtype: str, exact: bool = True, seed: int = 0) -> TorchModel:
    network = network_for(architecture, toy_tokenizer(kind), seed)
    return behind_the_seam(network, toy_tokenizer(kind), architecture, getattr(torch, dtype), exact)


@cache
def plain(architecture: str, kind: str, dtype: str) -> list[Completion]:
    """Return the target's own text: one request at a time, no drafts."""
    engine = build(gpu_model(architecture, kind, dtype), max_batch=1)
    return run(engine, varied_requests(), together=False, speculate=False)


def check_notes(engine: Engine) -> None:
    assert not [note for note in engine.notes if "captured" in note or "exact" in note]


@each_dtype
@each_case
def test_on_equals_off(architecture: str, kind: str, dtype: str) -> None:
    target, requests = gpu_model(architecture, kind, dtype), varied_requests()
    expected = plain(architecture, kind, dtype)
    script = (target, requests, expected)
    troupe = Troupe(Oracle(*script), Mixed(*script), Mixed(*script, as_ids=True, seed=1), Garbage(), Silent())
    engine = build(target, troupe, max_batch=16, prefill_chunk=40)
    check_notes(engine)
    done = run(engine, requests)
    assert texts(done) == texts(expected)
    assert total(done).by_source["Oracle"].accepted >= 0.3 * total(done).by_source["Oracle"].drafted > 0


@each_dtype
@pytest.mark.parametrize("place", ["gpu", "cpu"])
def test_a_drafter_beside_it_or_on_the_cpu(place: str, dtype: str) -> None:
    case = CASES[0]
    make = gpu_model if place == "gpu" else cpu_model
    target, drafter = gpu_model(*case, dtype), make("qwen3", "llama2", dtype, seed=1)
    engine = build(target, drafter=drafter, proposers="chain", draft_tokens=3, max_batch=16)
    check_notes(engine)
    done = run(engine, varied_requests())
    assert texts(done) == texts(plain(*case, dtype))
    assert total(done).by_source["draft_model"].drafted >= 50


@each_dtype
@each_case
def test_fast_mode_regrets_nothing(architecture: str, kind: str, dtype: str) -> None:
    """Greedy requests of every length: each choice is compared with plain decoding of the same prefix."""
    target = gpu_model(architecture, kind, dtype, exact=False)
    requests = in_ids(target, varied_requests(temperature=0.0, repetition_penalty=1.0, n=1), CONTEXT)
    alone = run(build(target, mode="fast", max_batch=1), requests, together=False, speculate=False)
    proposer = Mixed(target, requests, alone)
    done = run(build(target, proposer, mode="fast", max_batch=16), requests)
    worst = [regret(target, request, choice.token_ids, 8) for request, choice in zip(requests, done, strict=True)]
    assert max(worst) <= TIE, worst
