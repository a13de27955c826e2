"""Rollback is cheap and exact: after any acceptance and rejection, each KV cache equals a fresh prefill of its ids.

Bit for bit in exact mode, in float32 and bfloat16, for the target and the drafter; within 1e-5 in fast mode.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from codespec.proposers.draft_model import DraftModel
from codespec.sequence import Sequence
from tests.kin import cousin, sibling
from tests.pairs import CONTEXT, Mixed, build, model, run, varied_requests
from tests.slots import gap_to_prefill

REQUESTS = [replace(request, max_tokens=90) for request in varied_requests(n=1)[:5]]
EVERY = 9  # steps between comparisons


def run_and_compare(engine: Engine, twin: TorchModel, drafter_twin: TorchModel | None = None) -> tuple[float, int]:
    """Return the largest gap and the number of rounds; sequences join and leave on the way."""
    running = [sequence for request in REQUESTS for sequence in engine.submit(request)]
    worst, steps = 0.0, 0
    while not all(sequence.finish_reason for sequence in running):
        engine.step()
        steps += 1
        for sequence in running if steps % EVERY == 0 else ():
            if sequence.slot >= 0 and sequence.finish_reason is None:
                worst = max(worst, target_gap(engine, sequence, twin))
                if drafter_twin is not None:
                    worst = max(worst, drafter_gap(engine, sequence, drafter_twin))
    return worst, sum(sequence.stats.rounds for sequence in running)


def target_gap(engine: Engine, sequence: Sequence, twin: TorchModel) -> float:
    seen = sequence.ids[: sequence.cached]
    return gap_to_prefill(engine.target, sequence.slot, seen, twin, sequence.length_limit)


def drafter_gap(engine: Engine, sequence: Sequence, twin: TorchModel) -> float:
    """Compare the drafter's cache up to the length it counts as cached; it may have drafted further."""
    proposer = engine.proposers[0]
    assert isinstance(proposer, DraftModel)
    text = proposer._texts.get(sequence)
    if text is None:
        return 0.0
    seen = [*text.head, *text.ids][: text.cached]
    return gap_to_prefill(proposer.model, text.slot, seen, twin, proposer.context)


@pytest.mark.parametrize(
    "architecture,kind,dtype",
    [
        ("llama", "gpt2", "float32"),
        ("qwen2", "llama3", "bfloat16"),
    ],
)
def test_the_targets_cache_equals_a_prefill(architecture: str, kind: str, dtype: str) -> None:
    target, twin = model(architecture, kind, dtype), model(architecture, kind, dtype, twin=1)
    plain = run(build(target), REQUESTS, speculate=False)
    engine = build(target, Mixed(target, REQUESTS, plain, as_ids=True), max_batch=3, prefill_chunk=32)
    worst, rounds = run_and_compare(engine, twin)
    assert worst == 0.0
    kinds = engine.metrics.totals
    assert min(kinds.rounds_full, kinds.rounds_partial, kinds.rounds_none) >= 10
    assert rounds >= 120


@pytest.mark.parametrize("relation,dtype", [("sibling", "bfloat16"), ("cousin", "float32")])
def test_the_drafters_cache_equals_a_prefill(relation: str, dtype: str) -> None:
    if relation == "sibling":
        target, twin = model("llama", "gpt2", dtype), model("llama", "gpt2", dtype, twin=1)
        drafter, other = sibling("llama", "gpt2", dtype), sibling("llama", "gpt2", dtype, twin=1)
    else:
        target, twin = model("llama", "bytes", dtype), model("llama", "bytes", dtype, twin=1)
        drafter, other = cousin("llama", dtype), cousin("llama", dtype, twin=1)
    engine = build(target, drafter=drafter, max_batch=3)
    worst, rounds = run_and_compare(engine, twin, other)
    assert worst == 0.0
    kinds = engine.metrics.totals
    assert min(kinds.rounds_full, kinds.rounds_partial, kinds.rounds_none) >= 0.05 * rounds > 5


def test_a_finished_slot_holds_what_the_pool_says() -> None:
    """The next prompt reuses the slot, so it must end at the text's end, even inside an accepted draft."""
    target, twin = model("llama", "gpt2"), model("llama", "gpt2", twin=1)
    plain = run(build(target), REQUESTS, speculate=False)
    stops = [replace(request, stop=(done.text[9:12],)) for request, done in zip(REQUESTS, plain, strict=True)]
    expected = run(build(target), stops, speculate=False)
    engine = build(target, Mixed(target, stops, expected, as_ids=True), max_batch=2)
    running = [sequence for request in stops for sequence in engine.submit(request)]
    while any(sequence.finish_reason is None for sequence in running):
        before = [sequence for sequence in running if sequence.finish_reason is None]
        engine.step()
        for sequence in before:
            if sequence.finish_reason:
                held = engine._batch.pool._free[sequence.slot].ids
                assert held == sequence.ids[: len(held)] and len(held) >= len(sequence.ids) - 1
                assert gap_to_prefill(target, sequence.slot, held, twin, sequence.length_limit) == 0.0


def test_fast_mode_is_near() -> None:
    target, twin = model("llama", "gpt2", exact=False), model("llama", "gpt2", exact=False, twin=1)
    plain = run(build(target, mode="fast"), REQUESTS, speculate=False)
    engine = build(target, Mixed(target, REQUESTS, plain, as_ids=True), mode="fast", max_batch=3)
    worst, _ = run_and_compare(engine, twin)
    assert worst <= 1e-5


def test_the_comparison_can_fail() -> None:
    target, twin = model("llama", "gpt2"), model("llama", "gpt2", twin=1)
    engine = build(target, max_batch=1)
    (sequence,) = engine.submit(REQUESTS[0])
    engine.step()
    seen = sequence.ids[: sequence.cached]
    assert gap_to_prefill(target, sequence.slot, seen, twin, CONTEXT) == 0.0
    assert gap_to_prefill(target, sequence.slot, [*seen[:-1], seen[-1] ^ 1], twin, CONTEXT) > 1e-3
