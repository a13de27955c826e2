"""A target shared by two processes writes the same text as one process, with and without drafts, and ends cleanly."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from codespec.contract.types import CompletionRequest
from codespec.engine.build import build_engine
from codespec.engine.engine import Engine
from codespec.errors import ModelError
from codespec.store.choice import resolve_engine

PREFIXES = (
    "import os\n\ndef size(path):\n    return ",
    "for number in range(10):\n    print(",
    "class Point:\n    def ",
)


def requests(temperature: float = 0.0) -> list[CompletionRequest]:
    return [CompletionRequest(prefix=p * 3, max_tokens=24, temperature=temperature, seed=3) for p in PREFIXES]


def texts(engine: Engine, temperature: float = 0.0) -> list[str]:
    return [done.text for done in engine.complete(requests(temperature))]


@pytest.fixture(scope="module")
def split() -> Iterator[Engine]:
    engine = build_engine(resolve_engine({"tensor_parallel": 2, "warmup": 0, "policy": "fixed:4", "context": 512}))
    yield engine
    assert engine.target.tp_group is not None
    engine.target.tp_group.close()


@pytest.fixture(scope="module")
def whole() -> Engine:
    return build_engine(resolve_engine({"warmup": 0, "drafter": "none", "context": 512}))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_on_is_off_is_one_process(split: Engine, whole: Engine, temperature: float) -> None:
    done = split.complete(requests(temperature))
    assert sum(completion.stats.drafted for completion in done) > 30, "else nothing is tried"
    assert sum(completion.stats.accepted for completion in done) > 0
    split.speculate = False
    plain = texts(split, temperature)
    split.speculate = True
    assert [completion.text for completion in done] == plain == texts(whole, temperature)


def test_half_of_it_is_here(split: Engine, whole: Engine) -> None:
    assert split.target.cache is not None and whole.target.cache is not None
    assert split.target.shapes[0][0] * 2 == whole.target.shapes[0][0], "of the key heads"
    assert split.target.spec.parameters == whole.target.spec.parameters, "the model's, not the share's"
    assert split.target.spec.lean and split.target.spec.packed


def test_a_share_is_row_invariant_too(split: Engine) -> None:
    assert split.target.exact and not split.notes, "the start-up check ran over both processes"


def test_alternatives_share_a_prefill(split: Engine, whole: Engine) -> None:
    asked = CompletionRequest(prefix=PREFIXES[0] * 4, max_tokens=12, temperature=1.0, seed=1, n=3)
    ours, theirs = (engine.complete([asked])[0] for engine in (split, whole))
    assert [a.text for a in ours.alternatives] == [a.text for a in theirs.alternatives]
    assert len({ours.text, *(a.text for a in ours.alternatives)}) > 1


def test_a_worker_that_dies_is_reported(split: Engine) -> None:
    """The last test: the group has ended after it."""
    group = split.target.tp_group
    assert group is not None
    split.complete([CompletionRequest(prefix="x = ", max_tokens=8)])
    group.workers[0].send_signal(signal.SIGKILL)
    group.workers[0].wait()
    with pytest.raises(ModelError, match=r"A process that holds a part of the model has ended \(.+\): .+\."):
        split.complete([CompletionRequest(prefix="x = ", max_tokens=8)])
