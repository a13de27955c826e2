"""Fill-in-the-middle rows for a model with its own tokenizer.

Cuts are where people edit; the two orders are those of Bavarian et al. 2022. Row `i` depends only on the seed and `i`,
so a resumed run sees the same data.

The sentinels, which mark prefix, suffix, middle and end, are control tokens that the model never learned. Such a token
keeps its initial vector, apart from weight decay. The vectors of such tokens are almost equal, which distinguishes them
from learned ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from codespec.errors import TrainingError
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.corpus.documents import Document
from codespec_lab.training.distill.places import Cut, count_windows, cut_where_edited

ALIKE = 0.999  # cosine of two unlearned vectors
COUNT = 4
PLAIN_SHARE = 0.08  # of the samples, so that the model retains plain text
PSM_SHARE = 0.2
END_WEIGHT = 0.5
PREFIX_WEIGHT = 0.25  # of a prefix after its suffix: far more tokens than middles teach attention to the suffix
MAX_MIDDLE = 0.4  # of a sample
MIN_ROOM = 64
SAMPLE_TOKENS = (96, 128, 192, 256)  # the text near a gap matters most, and short samples teach more
STRIDE = 700


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The ids before a prefix, before a suffix, before a middle, and after a middle."""

    prefix: int
    suffix: int
    middle: int
    end: int

    @property
    def ids(self) -> tuple[int, int, int, int]:
        """All four ids, in that order."""
        return astuple(self)


def choose_sentinels(tokenizer: TextTokenizer, embedding: Tensor, names: Sequence[str] = ()) -> Sentinels:
    """Return the four tokens of `names`, or else the last four control tokens that were never learned.

    The first control tokens (`<file_sep>`) are more likely to be used later. `embedding` is [vocabulary, width]. Raise
    TrainingError if a name is unknown, there are not four names, or fewer than four tokens qualify.
    """
    if names:
        unknown = [name for name in names if name not in tokenizer.vocab]
        if unknown or len(set(names)) != COUNT:
            fault = f"{unknown[0]!r} is not in the vocabulary" if unknown else f"{len(set(names))} were named"
            raise TrainingError(f"--sentinels takes four tokens of the model's vocabulary, and {fault}: name others.")
        return Sentinels(*(tokenizer.vocab[name] for name in names))
    found = _unlearned(tokenizer, embedding)
    if len(found) < COUNT:
        raise TrainingError(
            f"The vocabulary has {len(found)} control tokens that the model never learned, and four are needed: "
            "name four tokens to give up with --sentinels."
        )
    return Sentinels(*found[-COUNT:])


def _unlearned(tokenizer: TextTokenizer, embedding: Tensor) -> list[int]:
    """Return the control tokens whose vectors are almost equal to those of at least two others."""
    ids = sorted(number for number in tokenizer.special_ids if number < len(embedding))
    rows = normalize(embedding[ids].float(), dim=1)
    alike = (rows @ rows.T > ALIKE).sum(1)
    return [number for number, count in zip(ids, alike.tolist(), strict=True) if count > 2]


def initial_vectors(embedding: Tensor, sentinels: Sentinels, end_ids: Sequence[int], seed: int) -> Tensor:
    """Return the initial vectors of the sentinels, [4, width].

    Three are random directions of median length. The end sentinel starts as the model's end-of-text token, which the
    model already predicts.
    """
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(COUNT, embedding.shape[1], generator=generator)
    rows: Tensor = normalize(directions, dim=1) * embedding.float().norm(dim=1).median()
    if end_ids:
        rows[-1] = embedding[end_ids[0]].float()
    return rows


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a step, each tensor [rows, length]; `weights` are label weights (0: ignored)."""

    ids: Tensor
    labels: Tensor
    weights: Tensor


@dataclass(slots=True)
class Sample:
    """Ids, and their weights as labels."""

    ids: list[int]
    weights: list[float]


class AdaptStream:
    """An endless, seekable stream of rows from a corpus."""

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

    def batch(self, first: int, rows: int, length: int) -> Batch:
        """Return rows `first` … `first + rows - 1`."""
        samples = [self.row(index, length + 1) for index in range(first, first + rows)]
        ids = torch.tensor([sample.ids for sample in samples])
        weights = torch.tensor([sample.weights for sample in samples])
        return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), weights[:, 1:].contiguous())

    def row(self, index: int, length: int) -> Sample:
        """Return `length` ids: as many samples as fit, then end tokens with weight 0."""
        rng = np.random.default_rng([self._seed, 4, index])
        row = Sample([], [])
        while length - len(row.ids) >= MIN_ROOM:
            window = int(rng.integers(len(self._owners)))
            room = min(length - len(row.ids), int(rng.choice(SAMPLE_TOKENS)))
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
    """Return a cut as at most `room` ids in `order` ("psm" or "spm").

    The middle has weight 1, its end END_WEIGHT, and a prefix after its suffix `prefix_weight`. Prefix and suffix are
    truncated at the ends far from the cursor. A middle that is too long is cut and gets no end token.
    """
    assert order in ("psm", "spm")
    longest = max(8, int(room * MAX_MIDDLE))
    whole = tokenizer.encode_inside(cut.middle)
    middle, ended = whole[:longest], len(whole) <= longest
    free = room - 4 - len(middle)
    prefix, suffix = tokenizer.encode_inside(cut.prefix), tokenizer.encode_inside(cut.suffix)
    suffix = suffix[: max(free // 3, free - len(prefix))]
    prefix = prefix[max(0, len(prefix) - (free - len(suffix))) :]
    if order == "psm":
        head = [sentinels.prefix, *prefix, sentinels.suffix, *suffix, sentinels.middle]
    else:
        head = [sentinels.prefix, sentinels.suffix, *suffix, sentinels.middle, *prefix]
    end = [sentinels.end] if ended else []
    counted = len(prefix[1:]) if order == "spm" else 0  # a prefix's first token cannot be predicted
    weights = [0.0] * (len(head) - counted) + [prefix_weight] * counted
    weights += [1.0] * len(middle) + [END_WEIGHT] * len(end)
    return Sample([*head, *middle, *end], weights)
