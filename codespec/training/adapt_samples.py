"""Fill-in-the-middle rows for a model that has a tokenizer of its own: cut, spelled, packed into one fixed shape.

Cursor places are those of people who edit, the two orders those of Bavarian et al. 2022. Row `i` depends on the seed
and `i` alone, so a resumed run sees the same data. Knows text and ids, no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from codespec.text.tokenizer import TextTokenizer
from codespec.training.corpus import Document
from codespec.training.cuts import Cut, cut_where_edited
from codespec.training.samples import count_windows
from codespec.training.sentinels import Sentinels

PLAIN_SHARE = 0.08  # of the samples: so that the model forgets nothing of plain text
PSM_SHARE = 0.2
END_WEIGHT = 0.5
PREFIX_WEIGHT = 0.25  # behind the suffix: it teaches to look there in far more tokens than middles have
MOST_MIDDLE = 0.4  # of a row
LEAST_ROOM = 64
ROOMS = (96, 128, 192, 256)  # tokens of a sample: most of what fills a gap stands near it, and short ones teach more
STRIDE = 700


@dataclass(frozen=True, slots=True)
class Rows:
    """A step's rows, each [rows, length]: ids, what follows each, and how much that counts (0: not at all)."""

    ids: Tensor
    labels: Tensor
    weights: Tensor


@dataclass(slots=True)
class Sample:
    """Ids and the weight of each as something to predict."""

    ids: list[int]
    weights: list[float]


class AdaptStream:
    """An endless, seekable stream of rows over a corpus."""

    def __init__(
        self,
        documents: Sequence[Document],
        tokenizer: TextTokenizer,
        sentinels: Sentinels,
        *,
        seed: int,
        prefix_weight: float = PREFIX_WEIGHT,
    ) -> None:
        self._documents = documents
        self._tokenizer = tokenizer
        self._sentinels = sentinels
        self._seed, self._prefix_weight = seed, prefix_weight
        self._owners, self._starts = count_windows(documents, STRIDE)
        probe = "\n".join(document.text[:2000] for document in documents[:: max(1, len(documents) // 50)])
        self._chars_per_token = len(probe) / max(1, len(tokenizer.encode_inside(probe)))

    def batch(self, first: int, rows: int, length: int) -> Rows:
        """Rows `first` … `first + rows - 1`."""
        made = [self.row(index, length + 1) for index in range(first, first + rows)]
        ids = torch.tensor([sample.ids for sample in made])
        weights = torch.tensor([sample.weights for sample in made])
        return Rows(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), weights[:, 1:].contiguous())

    def row(self, index: int, length: int) -> Sample:
        """`length` ids: samples while there is room, then ends that count for nothing."""
        rng = np.random.default_rng([self._seed, 4, index])
        row = Sample([], [])
        while length - len(row.ids) >= LEAST_ROOM:
            window = int(rng.integers(len(self._owners)))
            room = min(length - len(row.ids), int(rng.choice(ROOMS)))
            sample = self._sample(window, room, rng)
            row.ids += sample.ids
            row.weights += sample.weights
        missing = length - len(row.ids)
        return Sample(row.ids + [self._sentinels.end] * missing, row.weights + [0.0] * missing)

    def _sample(self, window: int, room: int, rng: np.random.Generator) -> Sample:
        text = self._documents[int(self._owners[window])].text
        start = int(self._starts[window])
        start = text.rfind("\n", 0, start + 1) + 1
        excerpt = text[start : start + int(room * self._chars_per_token * 0.95)]
        if rng.random() < PLAIN_SHARE:
            ids = self._tokenizer.encode_inside(excerpt)[:room]
            return Sample(ids, [0.0, *[1.0] * (len(ids) - 1)])
        cut = cut_where_edited(excerpt, rng)
        order = "psm" if rng.random() < PSM_SHARE else "spm"
        return fim_sample(cut, self._tokenizer, self._sentinels, room, order, self._prefix_weight)


def fim_sample(
    cut: Cut, tokenizer: TextTokenizer, sentinels: Sentinels, room: int, order: str, prefix_weight: float = 0.0
) -> Sample:
    """A cut as ids in `order` ("psm" or "spm"), at most `room`; the middle and its end count, and a prefix behind its
    suffix as much as `prefix_weight` says.

    Prefix and suffix lose their far ends. A middle that is too long is cut, and then has no end.
    """
    assert order in ("psm", "spm")
    most = max(8, int(room * MOST_MIDDLE))
    spelled = tokenizer.encode_inside(cut.middle)
    middle, ended = spelled[:most], len(spelled) <= most
    free = room - 4 - len(middle)
    before, behind = tokenizer.encode_inside(cut.prefix), tokenizer.encode_inside(cut.suffix)
    behind = behind[: max(free // 3, free - len(before))]
    before = before[max(0, len(before) - (free - len(behind))) :]
    if order == "psm":
        head = [sentinels.prefix, *before, sentinels.suffix, *behind, sentinels.middle]
    else:
        head = [sentinels.prefix, sentinels.suffix, *behind, sentinels.middle, *before]
    end = [sentinels.end] if ended else []
    known = len(before[1:]) if order == "spm" else 0  # a far end was cut: nobody can know its first token
    weights = [0.0] * (len(head) - known) + [prefix_weight] * known + [1.0] * len(middle) + [END_WEIGHT] * len(end)
    return Sample([*head, *middle, *end], weights)
