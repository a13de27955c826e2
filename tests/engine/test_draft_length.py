"""Draft lengths: caps, warm-up, switches. A cap counts target tokens and leaves room for the bonus token."""

from __future__ import annotations

from collections.abc import Sequence as Several

import pytest

from codespec.api.types import CompletionRequest
from codespec.engine.engine import Engine
from codespec.sequence import Cap, Draft, Sequence
from tests.parrot import Parrot, Prompter, parrot_engine
from tests.toy_tokenizers import toy_tokenizer

PREFIX, SPOKEN = "x = 1\n", "y = 2\nz = [3, 4, 5]\nprint(x, y, z)\n" * 3


class Watched(Prompter):
    """Records cap, remaining tokens and context length of each proposal; drafts twice the cap."""

    def __init__(self, parrot: Parrot) -> None:
        super().__init__(parrot, (99,))
        self.seen: list[tuple[int, int, int]] = []

    def propose(self, sequences: Several[Sequence], caps: Several[Cap]) -> list[Draft]:
        self.seen += [(cap.tokens, s.remaining, len(s.ids)) for s, cap in zip(sequences, caps, strict=True)]
        return super().propose(sequences, [Cap(2 * cap.tokens) for cap in caps])


def watched(cap: int = 4, warmup: int = 0, max_batch: int = 1) -> tuple[Engine, Watched]:
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX + SPOKEN)
    proposer = Watched(parrot)
    engine = parrot_engine(parrot, proposer, max_batch=max_batch, cap=cap)
    engine.warmup = warmup
    return engine, proposer


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 11])
def test_room_for_the_bonus_token(limit: int) -> None:
    engine, proposer = watched(cap=4)
    (done,) = engine.complete([CompletionRequest(prefix=PREFIX, max_tokens=limit)])
    assert len(done.token_ids) == limit
    assert [cap for cap, _, _ in proposer.seen] == [min(4, wanted - 1) for _, wanted, _ in proposer.seen]
    assert done.stats.drafted <= limit - 1, "what is too much is cut behind the proposer too"


def test_nothing_is_drafted_for_a_prompt_under_way() -> None:
    engine, proposer = watched()
    engine.prefill_chunk = 16
    engine.complete([CompletionRequest(prefix=PREFIX + SPOKEN[:50], max_tokens=3)])
    (cap, _, length), *_ = proposer.seen
    assert (cap, length) == (2, len(PREFIX + SPOKEN[:50]))


@pytest.mark.parametrize("warmup", [0, 6, 7, 10, 1000])
def test_warm_up_counts_the_prompt_too(warmup: int) -> None:
    engine, proposer = watched(warmup=warmup)
    engine.complete([CompletionRequest(prefix=PREFIX, max_tokens=12)])
    assert bool(proposer.seen) == (warmup < 1000)
    for cap, wanted, length in proposer.seen:
        assert cap == min(4, wanted - 1) and length >= warmup


@pytest.mark.parametrize(
    ("context", "language", "most"),
    [("docstring", "python", 0), ("docstring", "go", 4), ("comment", "go", 2), ("statement", "go", 9)],
)
def test_a_users_number_is_a_hard_cap(context: str, language: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(sequence: Sequence) -> None:
        sequence.outlook.context, sequence.outlook.language = context, language

    monkeypatch.setattr(Sequence, "follow_syntax", follow)
    engine, proposer = watched(cap=9)
    engine.caps = {"comment": 2, "docstring": 4, "python.docstring": 0}
    engine.complete([CompletionRequest(prefix=PREFIX, max_tokens=30)])
    assert max([cap for cap, _, _ in proposer.seen], default=0) == most


@pytest.mark.parametrize(
    "engine_says,request_says,on", [(True, None, 1), (False, None, 0), (True, False, 0), (False, True, 1)]
)
def test_the_request_may_say_otherwise(engine_says: bool, request_says: bool | None, on: int) -> None:
    engine, proposer = watched()
    engine.speculate = engine_says
    (done,) = engine.complete([CompletionRequest(prefix=PREFIX, max_tokens=12, speculate=request_says)])
    assert bool(done.stats.drafted) == bool(on) == any(cap for cap, _, _ in proposer.seen)


def test_switches_are_each_requests_own() -> None:
    engine, _ = watched(max_batch=2)
    done = engine.complete([CompletionRequest(prefix=PREFIX, max_tokens=12, speculate=on) for on in (False, True)])
    assert done[0].stats.drafted == 0 < done[1].stats.drafted
    assert done[0].token_ids == done[1].token_ids
