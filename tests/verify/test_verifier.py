"""The verifier: how much of a draft it accepts, and its bookkeeping of rows, positions and lengths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.api.types import CompletionRequest
from codespec.sequence import Candidates, Sequence
from codespec.text.filters import StopFinder
from codespec.verify.device_sampling import DeviceSampler
from codespec.verify.verifier import Turn, Verifier, match
from tests.parrot import Parrot
from tests.toy_tokenizers import toy_tokenizer

PREFIX, SPOKEN = "x = 1\n", "y = 2\nz = 3\n"
IDS = st.lists(st.integers(0, 3), max_size=8)


@given(IDS, IDS, st.integers(0, 3))
def test_accepts_the_common_prefix(candidates: list[int], others: list[int], bonus: int) -> None:
    choices, asked = [*others, *[9] * len(candidates), bonus][: len(candidates) + 1], []
    view: Any = SimpleNamespace(chosen=lambda row: asked.append(row) or choices[row])
    accepted, last = match(Candidates(tuple(candidates)), view)
    assert candidates[:accepted] == choices[:accepted] and last == choices[accepted]
    assert accepted == len(candidates) or candidates[accepted] != choices[accepted]
    assert asked == list(range(accepted + 1)), "rows behind the correction cost nothing"


def sequence_of(parrot: Parrot, slot: int, prefix: str = PREFIX, **request: object) -> Sequence:
    asked = CompletionRequest(prefix=prefix, **request)
    ids = parrot.tokenizer.encode(prefix)
    return Sequence(asked, 0, ids, prefix.encode(), b"", True, frozenset(), StopFinder(), slot=slot)


def message(parrot: Parrot, count: int) -> list[int]:
    """Return the next ids of the parrot's text."""
    return parrot.tokenizer.encode(SPOKEN)[:count]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), min_size=1, max_size=4))
def test_verdicts_and_lengths(plans: list[tuple[int, int, bool]]) -> None:
    """A batch of sequences with right, wrong and no candidates, some still in their prompt."""
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX + SPOKEN)
    verifier = Verifier(parrot)
    turns = []
    for slot, (right, wrong, whole) in enumerate(plans):
        sequence = sequence_of(parrot, slot)
        ids = (*message(parrot, right), *([0] * wrong)) if whole else ()
        turns.append(Turn(sequence, sequence.num_pending if whole else 4, Candidates(tuple(ids))))
    verdicts = verifier.verify(turns)
    for turn, verdict, (right, _, whole) in zip(turns, verdicts, plans, strict=True):
        held = parrot.cache.ids[turn.sequence.slot]  # type: ignore[union-attr]
        if not whole:
            assert verdict is None and turn.sequence.cached == 4
        else:
            assert verdict is not None and verdict.accepted == right
            assert list(verdict.committed) == message(parrot, right + 1)
            assert turn.sequence.cached == len(turn.sequence.ids) + right
            assert held[-right:] == message(parrot, right) or not right
        assert len(held) == turn.sequence.cached, "rejected rows are gone, the last choice is not in yet"
    assert parrot.forwards == 1


@given(st.lists(st.integers(0, 260), max_size=12), st.integers(0, 12))
def test_every_row_has_its_own_key(ids: list[int], committed: int) -> None:
    """Offsets count bytes, and silent tokens are counted separately: no two positions of a text share their noise."""
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX)
    verifier, sequence = Verifier(parrot), sequence_of(parrot, 0, temperature=1.0)
    keys = []
    for number in ids[:committed]:
        (position,) = verifier._positions(sequence, ())
        keys.append((position.offset, position.silent))
        spelled = parrot.token_bytes[number]
        sequence.ids.append(number)
        sequence.generated += spelled
        sequence.silent = 0 if spelled else sequence.silent + 1
    drafted = [(position.offset, position.silent) for position in verifier._positions(sequence, tuple(ids[committed:]))]
    assert len(set(keys + drafted)) == len(ids) + 1
    whole = Verifier(parrot)._positions(sequence_of(parrot, 0), tuple(ids))
    assert [(position.offset, position.silent) for position in whole] == keys + drafted, (
        "drafted or committed, the same"
    )


def test_the_penalty_sees_each_rows_own_beginning() -> None:
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX)
    verifier = Verifier(parrot)
    plain, penalized = sequence_of(parrot, 0), sequence_of(parrot, 0, repetition_penalty=1.2)
    assert [position.before for position in verifier._positions(plain, (7, 8))] == [(), (), ()]
    prompt = tuple(penalized.ids)
    wanted = [prompt, (*prompt, 7), (*prompt, 7, 8)]
    assert [position.before for position in verifier._positions(penalized, (7, 8))] == wanted


def test_held_bytes_bind_each_row() -> None:
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX)
    verifier, tokenizer = Verifier(parrot), parrot.tokenizer
    sequence = sequence_of(parrot, 0)
    sequence.held = b"ab"
    first, second, third, fourth = verifier._positions(sequence, tuple(tokenizer.encode("abc")))
    assert first.allowed is not None and second.allowed is not None
    assert [tokenizer.token_bytes[number] for number in first.allowed] == [b"a"]
    assert [tokenizer.token_bytes[number] for number in second.allowed] == [b"b"]
    assert third.allowed is None is fourth.allowed


@pytest.mark.parametrize("drawn", [(), (0,), (1,), (0, 1)], ids=["none", "the first", "the second", "both"])
def test_choices_on_the_device_are_of_those_rows_that_are_not_judged_by_rejection(drawn: tuple[int, ...]) -> None:
    """The rows of a draft with probabilities are between the others' in the batch's logits."""
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX + SPOKEN)
    verifier = Verifier(parrot)
    parrot.on_device = True
    verifier.device_sampler = DeviceSampler(parrot.token_bytes, parrot.device)
    turns = []
    for slot, count in enumerate((2, 3)):
        ids = tuple(message(parrot, count))
        row = np.full(len(parrot.token_bytes), 1e-9, np.float32)
        probabilities = tuple(np.where(np.arange(row.size) == number, 1.0, row).astype(np.float32) for number in ids)
        sequence = sequence_of(parrot, slot, temperature=0.01 if slot in drawn else 0.0, rule="rejection")
        turns.append(
            Turn(sequence, sequence.num_pending, Candidates(ids, probabilities=probabilities if slot in drawn else ()))
        )
    for turn, verdict in zip(turns, verifier.verify(turns), strict=True):
        assert verdict is not None and list(verdict.committed) == message(parrot, len(turn.candidates.ids) + 1)
