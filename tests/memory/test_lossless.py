"""The memory only drafts: full of the right texts or of hostile ones, the text is that of plain decoding."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from codespec.memory.accepted import Accepted, Memory
from codespec.proposers.chain import ChainProposer
from codespec.proposers.suffix import SuffixProposer
from codespec.types import Completion, CompletionRequest
from tests.pairs import JUNK, build, model, prompts

OWN = "user 1"
PATH = "/shop/src/a.py"
REQUESTS = [
    CompletionRequest(prefix=prompt, max_tokens=40, path=PATH, scope=OWN, temperature=heat, seed=7)
    for prompt in prompts(6)
    for heat in (0.0, 0.9)
]


@pytest.fixture(scope="module")
def plain() -> list[Completion]:
    engine = build(model("llama", "gpt2", twin=61))
    return [engine.complete([replace(request, speculate=False)])[0] for request in REQUESTS]


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory(1)
    made.scopes = frozenset({OWN})
    yield made
    made.close()


def fill(memory: Memory, texts: list[str]) -> None:
    for text in texts:
        memory.accept(Accepted("/shop", PATH, "python", "", text, "")).result()
    memory.find(OWN, PATH)
    memory.settle()
    assert memory.find(OWN, PATH) is not None


def right(plain: list[Completion]) -> list[str]:
    return [request.prefix[-96:] + done.text for request, done in zip(REQUESTS, plain, strict=True)]


def hostile(plain: list[Completion]) -> list[str]:
    """Beginnings that match for certain, and then what is never right: junk, control tokens, long runs, other ends."""
    dice = random.Random(1)
    found = []
    for request in REQUESTS:
        for junk in (*JUNK, "\n" * 40, " " * 60, "�", "a" * 3000):
            found.append(request.prefix[-dice.randint(12, 90) :] + junk + "".join(dice.choices(JUNK, k=6)))
    return found


def run(memory: Memory) -> list[Completion]:
    engine = build(model("llama", "gpt2", twin=62), drafter=model("gpt_neox", "bytes", seed=1, twin=62), draft_tokens=8)
    engine.proposer = ChainProposer([SuffixProposer(), engine.proposer])
    engine.proposer.remember_with(memory)
    return [engine.complete([request])[0] for request in REQUESTS]


@pytest.mark.parametrize("fill_with", [right, hostile])
def test_on_equals_off(plain: list[Completion], memory: Memory, fill_with: object) -> None:
    fill(memory, fill_with(plain))  # type: ignore[operator]
    done = run(memory)
    assert memory.drafts >= 5, "it was asked, and it drafted"
    assert [one.text for one in done] == [one.text for one in plain]
    assert [one.token_ids for one in done] == [one.token_ids for one in plain]


def test_right_texts_save_rounds(plain: list[Completion], memory: Memory) -> None:
    before = sum(done.stats.rounds for done in run(memory))
    fill(memory, right(plain))
    after = sum(done.stats.rounds for done in run(memory))
    assert after < 0.8 * before


def test_another_scope_gets_no_draft_of_it(plain: list[Completion], memory: Memory) -> None:
    fill(memory, right(plain))
    engine = build(model("llama", "gpt2", twin=63))
    engine.proposer = SuffixProposer()
    engine.proposer.remember_with(memory)
    for scope in ("", "user 2", "key 1 of user 1"):
        engine.complete([replace(REQUESTS[0], scope=scope)])
    assert memory.drafts == 0
    engine.complete([REQUESTS[0]])
    assert memory.drafts > 0
