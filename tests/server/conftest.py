"""A daemon around a real engine of tiny random models, and the texts that the target alone writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from codespec.proposers.chain import ChainProposer
from codespec.proposers.suffix import SuffixProposer
from codespec.types import Completion, CompletionRequest
from tests.pairs import build, model
from tests.server.daemons import Served, serving

Plain = Callable[[CompletionRequest], list[Completion]]
TWINS = count(7)  # a module of another folder that imports a fixture gets an engine of its own, and so a cache


@pytest.fixture(scope="session")
def toy() -> Iterator[Served]:
    """Speculates with a drafter of another tokenizer; four slots."""
    target, drafter = model("llama", "gpt2", twin=next(TWINS)), model("gpt_neox", "bytes", seed=1, twin=next(TWINS))
    engine = build(target, drafter=drafter, max_batch=4, draft_tokens=3, prefill_chunk=64)
    assert engine.proposer is not None
    engine.proposer = ChainProposer([SuffixProposer(), engine.proposer])
    with serving(engine, slots=4, queue=300) as served:
        yield served


@pytest.fixture(scope="session")
def plain() -> Plain:
    """All choices of a request, by the same target without speculation, in this thread."""
    engine = build(model("llama", "gpt2", twin=next(TWINS)), max_batch=4)

    def complete(request: CompletionRequest) -> list[Completion]:
        (first,) = engine.complete([request])
        return [first, *first.alternatives]

    return complete
