"""A finished request decoded again for comparison: the same texts, from one prefill, without being counted."""

from __future__ import annotations

from dataclasses import replace

from codespec.engine.engine import Engine
from codespec.engine.queue import Job
from codespec.sequence import Sequence
from tests.pairs import Oracle, build, model, run, varied_requests


def finish(engine: Engine, sequences: list[Sequence]) -> list[tuple[int, ...]]:
    """Run to the end and return the ids."""
    while not all(sequence.finish_reason for sequence in sequences):
        engine.step()
    return [tuple(sequence.ids[len(sequence.prompt_ids) :]) for sequence in sequences]


def test_all_choices_are_written_again_from_one_prompt() -> None:
    target = model("llama", "gpt2", twin=5)
    requests = [replace(varied_requests()[0], n=3, temperature=0.8, max_tokens=24)]
    proposer = Oracle(target, requests, run(build(target), requests, speculate=False))
    engine = build(target, proposer, max_batch=4)
    first = engine.submit(requests[0])
    texts = finish(engine, first)
    committed, drafted = engine.metrics.committed, sum(one.stats.drafted for one in first)
    audit = Job(requests[0], audited=first)
    engine.start(audit)
    engine.queue.add(audit)
    again = audit.sequences
    assert finish(engine, again) == texts and len(set(texts)) > 1 and drafted
    assert [one.parent for one in again] == [None, again[0], again[0]] and all(one.audit for one in again)
    assert all(one.stats.drafted == 0 for one in again) and engine.metrics.committed == committed
    assert min(one.stats.cached_tokens for one in again[1:]) >= len(again[0].prompt_ids) - 1
