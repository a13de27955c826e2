"""A paused sequence gives up its slot and resumes with the same text, keys and values.

Nothing is read twice while there is room.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Several
from dataclasses import replace

import pytest

from codespec.api.types import CompletionRequest
from codespec.backends.language_model import Rows, SlotPool
from codespec.engine.engine import Engine
from codespec.engine.round import completion_of
from codespec.sequence import Sequence
from tests.engine.test_caches import target_gap
from tests.engine.test_documents import counting_engine
from tests.pairs import build, cancel, drafters, model, prompts, run, texts, varied_requests

REQUESTS = [replace(request, max_tokens=16) for request in varied_requests(n=2)[:5]]


def run_in_turns(engine: Engine, requests: list[CompletionRequest], seed: int) -> list[Sequence]:
    """Run all requests at once; two to eight choices take part in each round."""
    chance = random.Random(seed)
    running = [sequence for request in requests for sequence in engine.submit(request)]
    while going := [sequence for sequence in running if sequence.finish_reason is None]:
        only = chance.sample(going, min(len(going), chance.randint(2, 4)))
        only += [one.parent for one in only if one.parent in going and one.parent not in only]
        for _ in range(chance.randint(1, 6)):
            engine.step(only)
            assert all(one.slot < 0 or one in only for one in going if one.finish_reason is None)
    return running


@pytest.mark.parametrize("has_room", [True, False])
def test_a_pause_changes_no_text(has_room: bool) -> None:
    """With few slots, evicted text is read again."""
    expected = run(build(model("llama", "gpt2")), REQUESTS, speculate=False)
    drafter = model("gpt_neox", "bytes", seed=1)
    engine = build(model("llama", "gpt2"), drafter=drafter, draft_tokens=2, max_batch=8, prefill_chunk=16)
    pools = [engine._batch.pool, drafters(engine)[0].slots]
    assert min(pool.count for pool in pools) >= 2 * len(REQUESTS)
    if not has_room:
        pools = [SlotPool(8), SlotPool(8)]
        engine._batch.pool, drafters(engine)[0].slots = pools
    written = run_in_turns(engine, REQUESTS, seed=has_room)
    assert texts([completion_of(sequence) for sequence in written]) == texts(expected)
    assert engine.queue.idle_for(0.0) is None and [pool.num_taken for pool in pools] == [0, 0]


def test_the_cache_is_what_a_prefill_gives() -> None:
    target, twin = model("llama", "gpt2"), model("llama", "gpt2", twin=1)
    engine = build(target, max_batch=1, prefill_chunk=32)
    both = [engine.submit(CompletionRequest(prefix=text, max_tokens=60))[0] for text in prompts(8)[4:6]]
    for turn in range(20):
        sequence = both[turn % 2]
        for _ in range(3):
            engine.step([sequence])
            assert target_gap(engine, sequence, twin) == 0.0
    assert min(sequence.num_generated for sequence in both) > 10


def num_fed(*turns: Several[int]) -> int:
    """Count the ids fed to a target while it alternates between two texts."""
    engine, fed = counting_engine("spm"), []
    forward = engine.target.forward

    def count(batch: Several[Rows], cached: bool = True) -> object:
        fed.append(sum(len(part.ids) for part in batch))
        return forward(batch, cached)

    engine.target.forward = count  # type: ignore[method-assign,assignment]
    request = CompletionRequest(prefix="one two three " * 60, max_tokens=20, speculate=False)
    both = [engine.submit(replace(request, prefix=name + request.prefix))[0] for name in "ab"]
    while any(sequence.finish_reason is None for sequence in both):
        for turn in turns:
            engine.step([both[number] for number in turn if both[number].finish_reason is None])
    assert [sequence.stats.cached_tokens for sequence in both] == [0, 0]
    return sum(fed)


def test_what_was_read_is_found_again() -> None:
    assert num_fed([0], [1]) == num_fed([0], [0], [0], [1]) == num_fed([0, 1])


def test_a_paused_text_still_has_its_deadline() -> None:
    engine = build(model("llama", "gpt2"), max_batch=1)
    late, other = (engine.submit(CompletionRequest(prefix=text, max_tokens=40))[0] for text in prompts(2))
    engine.step([late])
    engine.queue.jobs[0].request = replace(late.request, deadline_ms=1e-9)
    engine.step([other])
    engine.step()
    assert late.finish_reason == "deadline" and other.finish_reason is None
    cancel(engine, other)
    assert engine.queue.idle_for(0.0) is None


def test_a_short_prompt_is_read_beside_long_ones() -> None:
    """The oldest one still makes progress."""
    engine = build(model("llama", "gpt2"), max_batch=8, prefill_chunk=64)
    text = "".join(prompts(8))
    long = [engine.submit(CompletionRequest(prefix=f"{n} {text[:900]}", max_tokens=5))[0] for n in range(6)]
    engine.step()
    short = engine.submit(CompletionRequest(prefix=text[900:960], max_tokens=5))[0]
    assert len(short.prompt_ids) <= 48 and min(len(one.prompt_ids) for one in long) > 4 * 64
    engine.step()
    assert short.num_generated and long[0].cached >= 2 * 16
    for _ in range(4):
        engine.step()
    assert short.finish_reason
