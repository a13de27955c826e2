"""Two vocabularies and one text: mapping of probabilities, common boundaries, and both losses."""

from __future__ import annotations

import math

import pytest
import torch
from codespec_lab.training.distill.acceptance import count_rounds
from codespec_lab.training.distill.lessons import LessonOrder, batch, common_places, make_lesson
from codespec_lab.training.distill.loop import forward_kl, total_loss
from codespec_lab.training.distill.teacher import (
    NOWHERE,
    AlignedVocabularies,
    Expected,
    lay_out,
    load_expected,
    save_expected,
)
from codespec_lab.training.distill.texts import DistillationExample

from tests.toy_tokenizers import toy_tokenizer


class Words:
    """A hand-made vocabulary that spells by the longest entry."""

    def __init__(self, *entries: bytes, eos: int = -1) -> None:
        self.token_bytes = list(entries)
        self.vocab_size, self.fingerprint = len(entries), repr(entries)
        self.model_eos_ids = frozenset({eos} if eos >= 0 else ())

    def spell(self, pieces: list[bytes]) -> list[list[int]]:
        return [self._spell(piece) for piece in pieces]

    def _spell(self, piece: bytes) -> list[int]:
        found: list[int] = []
        while piece:
            fitting = [n for n, entry in enumerate(self.token_bytes) if entry and piece.startswith(entry)]
            if not fitting:
                return found
            found.append(max(fitting, key=lambda n: len(self.token_bytes[n])))
            piece = piece[len(self.token_bytes[found[-1]]) :]
        return found


TARGET = Words(b"return", b" x", b"(", b"", b"re", b"\xff", eos=3)
DRAFTER = Words(b"", b"re", b"turn", b" ", b"x", b"(", eos=0)


def aligned(target: Words = TARGET, drafter: Words = DRAFTER) -> AlignedVocabularies:
    return AlignedVocabularies(target, drafter)  # type: ignore[arg-type]


def test_a_chance_goes_to_the_token_with_which_the_drafter_begins() -> None:
    found = aligned()
    assert found.to_drafter.tolist() == [1, 3, 5, 0, 1, NOWHERE], "re, space, bracket, end, re, nothing"
    assert found.shared == 2, "the bracket and re"
    probabilities = torch.tensor([[0.4, 0.2, 0.1, 0.1, 0.1, 0.1]])
    ids, kept = found.carry(probabilities.log(), 4)
    assert dict(zip(ids[0].tolist(), kept[0].tolist(), strict=True)) == pytest.approx(
        {1: 0.5 / 0.9, 3: 0.2 / 0.9, 5: 0.1 / 0.9, 0: 0.1 / 0.9}, abs=2e-3
    ), "unmapped probability is dropped, and the rest sums to one"
    ids, kept = found.carry(probabilities.log(), 1)
    assert ids.tolist() == [[1]] and kept.tolist() == [[1.0]]


def test_one_vocabulary_keeps_its_ids() -> None:
    found = aligned(TARGET, TARGET)
    assert found.to_drafter.tolist() == [0, 1, 2, 3, 4, 5]


def test_places_are_taught_where_both_begin_and_the_drafters_token_is_no_longer() -> None:
    #            0 2 6 7 | the target: "return", " x", "(" from 0: 0 6 8 9
    assert common_places([0, 2, 6, 7, 8, 9], [0, 6, 8, 9]) == [(0, 0), (2, 1), (4, 2)]
    assert common_places([0, 6], [0, 2, 6]) == [], "only the first of the target's two tokens is known"
    assert common_places([-3, 0, 2], [-2, 0, 2]) == [(1, 1)]


def test_the_divergence_is_that_of_the_kept_chances() -> None:
    ids, probabilities = torch.tensor([[1, 3]]), torch.tensor([[0.75, 0.25]])
    logits = torch.tensor([[0.0, math.log(3.0), 0.0, math.log(2.0)]])  # probabilities 1/7, 3/7, 1/7, 2/7
    wanted = 0.75 * math.log(0.75 / (3 / 7)) + 0.25 * math.log(0.25 / (2 / 7))
    assert float(forward_kl(logits, ids, probabilities)) == pytest.approx(wanted, abs=1e-6)
    exact = torch.tensor([[-50.0, math.log(0.75), -50.0, math.log(0.25)]])
    assert float(forward_kl(exact, ids, probabilities)) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("kind", ["llama2", "gpt2"])
def test_a_lesson_spells_the_text_and_learns_each_of_its_tokens(kind: str) -> None:
    tokenizer = toy_tokenizer(kind)
    example = DistillationExample("a.py", "def first(x):\n    return ", "grüße(x)\n", "", ended=True)
    laid = lay_out(tokenizer, None, example, 200)
    assert laid.bounds[-1] == len(example.middle.encode()) and laid.bounds[0] <= 0
    offsets = [bound for bound in laid.bounds if bound >= 0]
    rows = len(offsets)
    expected = Expected(offsets, torch.ones(rows, 2, dtype=torch.int32), torch.full((rows, 2), 0.5).half())
    lesson = make_lesson(tokenizer, None, example, expected, "written", 200)
    text = [n for n, weight in zip(lesson.labels, lesson.weights, strict=True) if weight == 1.0]
    assert tokenizer.decode_bytes(text) == example.middle.encode() and text[-1] in tokenizer.model_eos_ids
    assert [lesson.tokens[row + 1] for row in lesson.rows[:-1]] == lesson.labels[:-1]
    assert len(lesson.taught) == rows - 1, "at each token of the text except the target's end"
    rows_of_two = batch([lesson, lesson])
    logits = torch.zeros(2 * rows_of_two.tokens.shape[1], tokenizer.vocab_size)
    uniform = math.log(tokenizer.vocab_size)
    weights, taught = 2 * sum(lesson.weights), 2 * len(lesson.taught)
    wanted = (weights * uniform + taught * (uniform - math.log(2))) / (weights + taught)
    assert float(total_loss(logits, rows_of_two)) == pytest.approx(wanted, rel=1e-3)


def test_expectations_come_back_from_disk(tmp_path) -> None:  # type: ignore[no-untyped-def]
    one = Expected([-2, 0, 3], torch.arange(6, dtype=torch.int32).view(3, 2), torch.rand(3, 2).half())
    other = Expected([0], torch.zeros(1, 2, dtype=torch.int32), torch.ones(1, 2).half())
    save_expected(tmp_path / "a", [one, other])
    first, second = load_expected(tmp_path / "a")
    assert first.offsets == one.offsets and torch.equal(first.ids, one.ids)
    assert torch.equal(second.probabilities, other.probabilities)


def test_rounds_are_counted_as_speculation_counts_them() -> None:
    stops = [0, 2, 4, 6, 8]  # four tokens of the target
    assert count_rounds([0, 2, 4, 6, 8], [True] * 4, stops) == (3, 1), "with the bonus token"
    assert count_rounds([0, 2, 4, 6, 8], [False] * 4, stops) == (0, 4)
    assert count_rounds([0, 2, 4, 6, 8], [True, False, True, False], stops) == (2, 2)
    assert count_rounds([0, 3, 8], [True, False], stops) == (1, 3), "half a token of the target does not count"
    assert count_rounds([0, 8], [True], stops) == (3, 1)


def test_batches_repeat_by_seed_and_every_epoch_holds_each_lesson_once() -> None:
    lengths = [10 + 7 * n % 50 for n in range(40)]
    order, again = LessonOrder(lengths, 120, 3), LessonOrder(lengths, 120, 3)
    later = again.batch(25)
    batches = [order.batch(number) for number in range(26)]
    assert batches[25] == later and all(sum([max(lengths[i] for i in b)] * len(b)) <= 120 for b in batches)
    epoch = [index for found in order._batches[0] for index in found]
    assert sorted(epoch) == list(range(40)) and order._batches[0] != order._batches[1]
