"""Distillation data for a drafter: rows of its tokens with labels, and the target's distributions at common boundaries.

A common boundary is a byte at which a token of both models begins. Batch `i` depends only on the seed and `i`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from codespec.text.fim_templates import FimTemplate
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.training.distill.teacher import Expected, lay_out
from codespec_lab.training.distill.texts import DistillationExample

TextOrigin = Literal["written", "read", "own"]  # text written by the target, by people, or by the drafter
# Weight of a token as a label. The target's own choice counts in full. People's text is not always the target's choice.
# A drafter's text is no label; only the target's distributions in it count.
TEXT_WEIGHT: dict[TextOrigin, float] = {"written": 1.0, "read": 0.25, "own": 0.0}
PREFIX_WEIGHT = 0.25
ROOM = 640  # maximum tokens of a row
WINDOW = 64  # batches per window; rows are sorted by length within a window


@dataclass(frozen=True, slots=True)
class Lesson:
    """One training row.

    Position `rows[i]` predicts the token `labels[i]` with weight `weights[i]`. `bounds` are byte offsets of token
    boundaries, counted from the cursor. At position `taught[j]` the target's likeliest tokens are `ids[j]` (int32) with
    `probabilities[j]` (float16), both [taught, KEPT].
    """

    tokens: list[int]
    bounds: list[int]
    rows: list[int]
    labels: list[int]
    weights: list[float]
    taught: list[int]
    ids: Tensor
    probabilities: Tensor


@dataclass(frozen=True, slots=True)
class LessonBatch:
    """Lessons padded to `tokens` [B, T]. `rows` and `taught` are indices into the flattened [B × T]."""

    tokens: Tensor
    rows: Tensor
    labels: Tensor
    weights: Tensor
    taught: Tensor
    ids: Tensor
    probabilities: Tensor


def make_lesson(
    tokenizer: TextTokenizer,
    template: FimTemplate | None,
    example: DistillationExample,
    expected: Expected,
    kind: TextOrigin,
    room: int = ROOM,
) -> Lesson:
    """Convert an example to the drafter's tokens."""
    laid = lay_out(tokenizer, template, example, room)
    places = range(laid.first, len(laid.ids))
    weights = [TEXT_WEIGHT[kind] if bound >= 0 else PREFIX_WEIGHT for bound in laid.bounds[:-1]]
    tokens, rows, labels = laid.ids, [place - 1 for place in places], laid.ids[laid.first :]
    ends = sorted(tokenizer.model_eos_ids)
    if example.ended and ends and laid.bounds[-1] == len(example.middle.encode()):
        rows, labels, weights = [*rows, len(tokens) - 1], [*labels, ends[0]], [*weights, TEXT_WEIGHT[kind]]
    pairs = common_places(laid.bounds, expected.offsets)
    where = torch.tensor([there for _, there in pairs], dtype=torch.long)
    taught = [laid.first - 1 + here for here, _ in pairs]
    return Lesson(
        tokens, laid.bounds, rows, labels, weights, taught, expected.ids[where], expected.probabilities[where]
    )


def common_places(drafter: Sequence[int], target: Sequence[int]) -> list[tuple[int, int]]:
    """Return index pairs (drafter, target) of common boundaries whose drafter token is no longer than the target's.

    The target's next token then determines the drafter's. A longer drafter token would span several target tokens, of
    which only the first is known.
    """
    found = []
    for here, (bound, end) in enumerate(pairwise(drafter)):
        there = bisect_right(target, bound) - 1
        if 0 <= there < len(target) - 1 and target[there] == bound and end <= target[there + 1]:
            found.append((here, there))
    return found


def batch(lessons: Sequence[Lesson]) -> LessonBatch:
    """Stack lessons as rows, padded on the right; causal attention never reads the padding."""
    length = max(len(lesson.tokens) for lesson in lessons)
    tokens = torch.zeros(len(lessons), length, dtype=torch.long)
    for row, lesson in enumerate(lessons):
        tokens[row, : len(lesson.tokens)] = torch.tensor(lesson.tokens)
    starts = [row * length for row in range(len(lessons))]
    flat = list(zip(starts, lessons, strict=True))
    return LessonBatch(
        tokens,
        torch.tensor([start + row for start, lesson in flat for row in lesson.rows], dtype=torch.long),
        torch.tensor([label for lesson in lessons for label in lesson.labels], dtype=torch.long),
        torch.tensor([weight for lesson in lessons for weight in lesson.weights]),
        torch.tensor([start + row for start, lesson in flat for row in lesson.taught], dtype=torch.long),
        torch.cat([lesson.ids for lesson in lessons]),
        torch.cat([lesson.probabilities for lesson in lessons]),
    )


class LessonOrder:
    """An endless, seekable order of batches of about `tokens` tokens; the rows of a batch have similar lengths."""

    def __init__(self, lengths: Sequence[int], tokens: int, seed: int) -> None:
        self._lengths, self._tokens, self._seed = np.array(lengths), tokens, seed
        self._batches: list[list[list[int]]] = []  # per epoch
        self._ends: list[int] = []

    def batch(self, number: int) -> list[int]:
        """Return the indices of the lessons in batch `number`."""
        while not self._ends or number >= self._ends[-1]:
            self._batches.append(self._epoch(len(self._batches)))
            self._ends.append((self._ends[-1] if self._ends else 0) + len(self._batches[-1]))
        epoch = bisect_right(self._ends, number)
        return self._batches[epoch][number - (self._ends[epoch - 1] if epoch else 0)]

    def _epoch(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng([self._seed, 6, epoch])
        order = rng.permutation(len(self._lengths))
        size = max(1, int(WINDOW * self._tokens / self._lengths.mean()))
        found = list[list[int]]()
        for start in range(0, len(order), size):
            window = order[start : start + size]
            found += self._cut(window[np.argsort(self._lengths[window], kind="stable")])
        return [found[place] for place in rng.permutation(len(found))]

    def _cut(self, window: np.ndarray) -> list[list[int]]:
        batches, current = list[list[int]](), list[int]()
        for index in window.tolist():
            if current and int(self._lengths[index]) * (len(current) + 1) > self._tokens:
                batches.append(current)
                current = []
            current.append(index)
        return [*batches, current]
