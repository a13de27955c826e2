"""Speculation with device steps, on a CPU: on = off with buckets, padding and static buffers.

Batches of up to sixteen with prompts in small chunks, with a drafter that also runs in device steps.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from codespec.api.types import Completion
from codespec.backends.torch.loader import wrap
from codespec.backends.torch.model import TorchModel
from tests.pairs import Garbage, Mixed, Oracle, Silent, Troupe, build, network_for, run, texts, total, varied_requests
from tests.toy_tokenizers import toy_tokenizer

CASES = (("llama", "gpt2", "float32"), ("gemma2", "llama2", "float32"), ("phi3", "qwen", "bfloat16"))
every_case = pytest.mark.parametrize("architecture,kind,dtype", CASES)


@cache
def device_model(architecture: str, kind: str, dtype: str, seed: int = 0) -> TorchModel:
    tokenizer = toy_tokenizer(kind)
    network = network_for(architecture, tokenizer, seed).to(getattr(torch, dtype))
    where = torch.device("cpu")
    return wrap(network, tokenizer, architecture, device=where, dtype=getattr(torch, dtype), exact=True, steps="device")


@cache
def plain(architecture: str, kind: str, dtype: str) -> list[Completion]:
    """Return the target's own text: one request at a time, no drafts."""
    engine = build(device_model(architecture, kind, dtype), max_batch=1)
    return run(engine, varied_requests(), together=False, speculate=False)


@every_case
def test_on_equals_off(architecture: str, kind: str, dtype: str) -> None:
    target, requests, expected = (
        device_model(architecture, kind, dtype),
        varied_requests(),
        plain(architecture, kind, dtype),
    )
    script = (target, requests, expected)
    troupe = Troupe(Oracle(*script), Mixed(*script), Mixed(*script, as_ids=True, seed=1), Garbage(), Silent())
    done = run(build(target, troupe, max_batch=16, prefill_chunk=40), requests)
    assert target.steps == "device" and target.exact
    assert texts(done) == texts(expected)
    sources = total(done).by_source
    assert sources["Oracle"].accepted >= 0.3 * sources["Oracle"].drafted > 0


@pytest.mark.parametrize("architecture,kind,dtype", CASES[:1])
def test_a_drafter_in_device_steps(architecture: str, kind: str, dtype: str) -> None:
    target, drafter = device_model(architecture, kind, dtype), device_model("qwen3", "llama3", dtype, seed=1)
    engine = build(target, drafter=drafter, proposers="chain", draft_tokens=3, prefill_chunk=64)
    done = run(engine, varied_requests())
    assert texts(done) == texts(plain(architecture, kind, dtype))
    assert total(done).by_source["draft_model"].drafted >= 50


def test_steps_larger_than_all_buckets() -> None:
    """Buckets of up to eight rows: prompts and full batches run without a bucket, the rest in buckets."""
    case = CASES[0]
    target, requests = device_model(*case), varied_requests()
    proposer = Mixed(target, requests, plain(*case))
    done = run(build(target, proposer, graph_rows=8), requests)
    assert texts(done) == texts(plain(*case))
