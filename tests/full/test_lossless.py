"""The large losslessness run: speculation on = off = transformers' `generate`, on every prompt.

`make test-full PROMPTS=FILE` takes a prompts file (HumanEval, say); without one the machine's standard library is cut.
Writes docs/lossless.json. CODESPEC_TARGET and CODESPEC_DRAFTER choose another pair.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from codespec.bench.prompts import read_prompts, stdlib_prompts
from codespec.config import resolve
from codespec.engine.engine import Engine
from codespec.types import Completion, CompletionRequest, Stats
from tests.full.report import write_report

pytestmark = pytest.mark.full
TOKENS = 64
BATCH = 8
ROWS: dict[str, Any] = {}


@pytest.fixture(scope="module")
def requests() -> list[CompletionRequest]:
    file = os.environ.get("CODESPEC_PROMPTS")
    prompts = read_prompts(Path(file)) if file else stdlib_prompts(164)
    # Every third prompt gets half the tokens, so that requests join and leave a batch at different times.
    return [
        CompletionRequest(prefix=p.prefix, path=p.path, max_tokens=TOKENS if i % 3 else TOKENS // 2, seed=i)
        for i, p in enumerate(prompts)
    ]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(request: pytest.FixtureRequest) -> Engine:
    # The cost rule would find that this drafter hardly pays, and a run without drafts proves nothing.
    return Engine.load(dtype=request.param, warmup=0, max_batch=BATCH, policy="confidence", draft_tokens=8)


def complete(engine: Engine, requests: list[CompletionRequest], batch: int, **change: Any) -> list[Completion]:
    done: list[Completion] = []
    for start in range(0, len(requests), batch):
        done += engine.complete([replace(r, **change) for r in requests[start : start + batch]])
    return done


def check_guards(done: list[Completion]) -> Stats:
    """A run that drafted little, or only ever right or wrong, would prove nothing."""
    total = Stats()
    for completion in done:
        total.add(completion.stats)
    drafted = total.rounds_full + total.rounds_partial + total.rounds_none
    assert total.by_source["draft_model"].drafted >= 500
    for kind in (total.rounds_full, total.rounds_partial, total.rounds_none):
        assert kind >= 0.05 * drafted
    return total


def equal(first: list[Completion], second: list[Completion]) -> int:
    return sum(a.token_ids == b.token_ids and a.text == b.text for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_on_equals_off(engine: Engine, requests: list[CompletionRequest], temperature: float) -> None:
    assert engine.target.exact
    off = complete(engine, requests, 1, speculate=False, temperature=temperature)
    alone = complete(engine, requests, 1, speculate=True, temperature=temperature)
    together = complete(engine, requests, BATCH, speculate=True, temperature=temperature)
    total = check_guards(alone)
    key = f"{engine.target.spec.dtype} temperature {temperature}"
    ROWS[key] = {
        "prompts": len(requests),
        "on_equals_off_batch_1": equal(alone, off),
        "on_equals_off_batch_8": equal(together, off),
        "stats_batch_1": total.as_dict(),
    }
    write_report("lossless", "make test-full PROMPTS=FILE", ROWS)
    assert equal(alone, off) == equal(together, off) == len(requests)


@pytest.mark.parametrize("policy", ["cost+syntax", "cost", "plus2minus1", "ds4-80"])
def test_on_equals_off_whatever_sets_the_length(requests: list[CompletionRequest], policy: str) -> None:
    engine = Engine.load(dtype="bfloat16", warmup=0, max_batch=BATCH, policy=policy, learn=False)
    off = complete(engine, requests, BATCH, speculate=False, temperature=0.8)
    done = complete(engine, requests, BATCH, speculate=True, temperature=0.8)
    total = Stats()
    for completion in done:
        total.add(completion.stats)
    ROWS[f"bfloat16 temperature 0.8 policy {policy}"] = {
        "prompts": len(requests),
        "on_equals_off_batch_8": equal(done, off),
        "stats": total.as_dict(),
    }
    write_report("lossless", "make test-full PROMPTS=FILE", ROWS)
    assert total.drafted >= 500 and total.rounds_full and total.rounds_none
    assert equal(done, off) == len(requests)


def test_equals_generate(requests: list[CompletionRequest]) -> None:
    """Plain, float32: the same ids as transformers' own greedy `generate` on its own attention and cache."""
    engine = Engine.load(dtype="float32", warmup=0, policy="fixed:8", max_batch=BATCH)
    ours = complete(engine, requests, BATCH, speculate=True)
    network = AutoModelForCausalLM.from_pretrained(resolve({}).target, dtype=torch.float32)
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
