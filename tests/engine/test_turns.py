"""Clients take turns, then the documents of a client: one key's burst makes no other wait, with a real engine."""

from __future__ import annotations

import time

import pytest

from codespec.api.types import CompletionRequest
from codespec.engine.job import Job
from codespec.engine.queue import QUANTUM, share_rows
from tests.pairs import build, model

BURST = 60


@pytest.mark.parametrize("slots", [2, 4])
def test_a_burst_of_one_key_does_not_delay_another(slots: int) -> None:
    """Each of ana's requests has a document of its own and less to write than bo's."""
    engine = build(model("llama", "gpt2"), max_batch=slots)
    burst = [Job(CompletionRequest(prefix=f"a{n}", max_tokens=4, scope="ana", document=f"{n}")) for n in range(BURST)]
    for job in burst:
        engine.queue.add(job)
    for _ in range(3):
        engine.step()
    other = Job(CompletionRequest(prefix="def f(x):\n", max_tokens=12, scope="bo"))
    engine.queue.add(other)
    rounds = 0
    while not other.finished:
        engine.step()
        rounds += 1
        assert rounds < 100
    ended = sum(job.finished for job in burst)
    assert rounds <= 12 + (0 if slots >= 4 else QUANTUM), f"{rounds} rounds for 12 tokens; {ended} of ana's ended"
    assert 0 < ended < BURST // 2
    while not all(job.finished for job in burst):
        engine.step()


def test_documents_of_one_client_take_turns_as_before() -> None:
    engine = build(model("llama", "gpt2"), max_batch=4)
    now = time.perf_counter()
    many = [Job(CompletionRequest(prefix=f"{n}", max_tokens=4, scope="ana", document="many")) for n in range(20)]
    for job in many:
        engine.queue.add(job)
    chosen = {(job.request.document, job.number) for job, _ in engine.queue._choose(now)}
    assert chosen == {("many", n) for n in range(4)}
    few = Job(CompletionRequest(prefix="few", max_tokens=8, scope="ana", document="few"))
    engine.queue.add(few)
    assert few in [job for job, _ in engine.queue._choose(now)]


def test_clients_share_the_rows_of_prompts() -> None:
    """ana's short prompts do not keep bo's long one from being read."""
    engine = build(model("llama", "gpt2"), max_batch=8, prefill_chunk=64)
    jobs = [Job(CompletionRequest(prefix="a" * 40, max_tokens=2, scope="ana", document=f"{n}")) for n in range(6)]
    jobs.append(Job(CompletionRequest(prefix="b" * 200, max_tokens=2, scope="bo")))
    for job in jobs:
        engine.queue.add(job)
    chosen = engine.queue.next_round(time.perf_counter(), engine.start)
    share_rows(chosen, 64)
    feeds = {sequence.request.scope: 0 for sequence in chosen}
    for sequence in chosen:
        feeds[sequence.request.scope] += sequence.feed
    assert sum(feeds.values()) == 64 and feeds["bo"] >= 64 // 4, feeds
    for sequence in chosen:
        sequence.feed = 0
