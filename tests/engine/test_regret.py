"""Fast mode's promise: plain decoding of the same prefix, one row per step, never regrets a choice by over 0.2 nat.

For all drafts and batches, greedy and sampled, at every position.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from codespec.api.config import SHIPPED
from codespec.api.types import CompletionRequest
from codespec.backends.loader import load_model
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from tests.engine.test_planted_faults import correction_dropped
from tests.pairs import CONTEXT, Mixed, build, network_for, prompts, run, total, wrapped
from tests.regret import TIE, in_ids, regret
from tests.toy_tokenizers import toy_tokenizer

TOKENS = 16


def asked(target: TorchModel) -> list[CompletionRequest]:
    """Greedy and sampled requests in turn, of different lengths."""
    requests = [
        CompletionRequest(prefix=prefix, max_tokens=TOKENS - place, seed=place, temperature=0.8 * (place % 2))
        for place, prefix in enumerate(prompts())
    ]
    return in_ids(target, requests, CONTEXT)


@cache
def tiny(dtype: str, exact: bool = False) -> TorchModel:
    """Return a random Llama with heads as wide as those of large models."""
    torch.set_num_threads(1)
    tokenizer = toy_tokenizer("gpt2")
    return wrapped(network_for("llama", tokenizer, head_dim=128), tokenizer, "llama", dtype, exact)


def scripted(target: TorchModel, batch: int) -> Engine:
    """Return drafts that are right, partly right and wrong."""
    mode, requests = "exact" if target.exact else "fast", asked(target)
    alone = run(build(target, mode=mode, max_batch=1), requests, together=False, speculate=False)
    return build(target, Mixed(target, requests, alone, as_ids=True), mode=mode, max_batch=batch)


@cache
def starter(dtype: str) -> tuple[TorchModel, TorchModel]:
    """Return the pair that ships with the package."""
    target = load_model(str(SHIPPED / "target"), dtype=dtype, exact=False)
    return target, load_model(str(SHIPPED / "drafter"), dtype=dtype, exact=False)


def worst_regret(engine: Engine, batch: int) -> float:
    """Return the worst regret over all requests; assert enough right and wrong drafts."""
    requests = asked(engine.target)
    done = run(engine, requests, together=batch > 1)
    rounds = total(done)
    assert min(rounds.rounds_full + rounds.rounds_partial, rounds.rounds_none + rounds.rounds_partial) >= 10
    return max(regret(engine.target, request, choice.token_ids) for request, choice in zip(requests, done, strict=True))


@pytest.mark.parametrize(
    ("pair", "batch", "dtype"), [("starter", 8, "bfloat16"), ("tiny", 1, "float32"), ("tiny", 8, "bfloat16")]
)
def test_fast_mode_regrets_nothing(pair: str, batch: int, dtype: str) -> None:
    if pair == "starter":
        target, drafter = starter(dtype)
        engine = build(target, drafter=drafter, mode="fast", max_batch=batch)
    else:
        engine = scripted(tiny(dtype), batch)
    assert engine.mode == "fast" and not engine.target.exact, "it claims no more than it keeps"
    assert worst_regret(engine, batch) <= TIE


def test_exact_mode_regrets_nothing_at_all() -> None:
    """This also shows that the measure reproduces the engine's noise."""
    engine = scripted(tiny("bfloat16", exact=True), 8)
    assert engine.mode == "exact"
    assert worst_regret(engine, 8) == 0.0


def test_a_wrong_token_is_regretted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted(tiny("float32"), 8)
    correction_dropped(monkeypatch)
    assert worst_regret(engine, 8) > TIE
