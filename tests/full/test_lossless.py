"""The large losslessness run: speculation on = off = transformers' `generate`, on every prompt.

`make test-full PROMPTS=FILE` takes a prompts file (for example HumanEval); the default is pieces of the machine's
standard library. Writes docs/lossless.json. CODESPEC_TARGET and CODESPEC_DRAFTER choose another pair.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from codespec.api.types import CompletionRequest, Stats
from codespec.engine.engine import Engine
from codespec.store.choice import resolve_engine
from tests.full.on_off import BATCH, compare, complete, equal, load_drafting, read_requests, total
from tests.full.report import write_report

pytestmark = pytest.mark.full
ROWS: dict[str, Any] = {}


@pytest.fixture(scope="module")
def requests() -> list[CompletionRequest]:
    return read_requests()


@pytest.fixture(scope="module", params=["float32", "bfloat16", "native"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return load_drafting(request.param)


def check_guards(stats: Stats) -> None:
    """Assert enough drafts, both accepted and rejected; otherwise the run would prove nothing."""
    assert stats.by_source["draft_model"].drafted >= 500
    assert min(stats.rounds_full, stats.rounds_partial, stats.rounds_none) >= 50


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_on_equals_off(engine: Engine, requests: list[CompletionRequest], temperature: float) -> None:
    assert engine.target.exact
    row, stats = compare(engine, requests, temperature)
    check_guards(stats)
    ROWS[f"{engine.target.spec.dtype} temperature {temperature}"] = {k: v for k, v in row.items() if k != "texts"}
    write_report("lossless", "make test-full PROMPTS=FILE", ROWS)
    assert row["on_equals_off_batch_1"] == row["on_equals_off_batch_8"] == len(requests)


@pytest.mark.parametrize("policy", ["cost+syntax", "cost", "ds4-80"])
def test_on_equals_off_whatever_sets_the_length(requests: list[CompletionRequest], policy: str) -> None:
    engine = Engine.load(dtype="bfloat16", warmup=0, max_batch=BATCH, policy=policy, learn=False)
    off = complete(engine, requests, BATCH, speculate=False, temperature=0.8)
    done = complete(engine, requests, BATCH, speculate=True, temperature=0.8)
    stats = total(done)
    ROWS[f"bfloat16 temperature 0.8 policy {policy}"] = {
        "prompts": len(requests),
        "on_equals_off_batch_8": equal(done, off),
        "stats": stats.as_dict(),
    }
    write_report("lossless", "make test-full PROMPTS=FILE", ROWS)
    assert stats.drafted >= 500 and stats.rounds_full and stats.rounds_none
    assert equal(done, off) == len(requests)


def test_equals_generate(requests: list[CompletionRequest]) -> None:
    """Plain, float32: the same ids as transformers' own greedy `generate` with its own attention and cache."""
    engine = Engine.load(dtype="float32", warmup=0, policy="fixed:8", max_batch=BATCH)
    ours = complete(engine, requests, BATCH, speculate=True)
    network = AutoModelForCausalLM.from_pretrained(resolve_engine({}).target, dtype=torch.float32)
    same = 0
    for request, done in zip(requests, ours, strict=True):
        ids = torch.tensor([engine.target.tokenizer.encode(request.prefix)])
        with torch.inference_mode():
            out = network.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=request.max_tokens, do_sample=False
            )
        same += tuple(out[0, ids.shape[1] :].tolist()) == done.token_ids
    ROWS["float32 equals generate"] = {"prompts": len(requests), "equal": same}
    write_report("lossless", "make test-full PROMPTS=FILE", ROWS)
    assert same == len(requests)
