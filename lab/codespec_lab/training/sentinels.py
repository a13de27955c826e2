"""Choose the tokens that mark prefix, suffix, middle and end: control tokens the model never learned.

A token that never occurred in training keeps its initial vector, apart from weight decay. The vectors of such tokens
are almost equal, which distinguishes them from learned ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from codespec.errors import TrainingError
from codespec.text.tokenizer import TextTokenizer

ALIKE = 0.999  # cosine of two unlearned vectors
COUNT = 4


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

    The last ones, because the first (`<file_sep>`) are more likely to be used later. `embedding` is [vocabulary,
    width]. Raise TrainingError if a name is unknown, the names are not four, or fewer
    than four tokens qualify.
    """
    if names:
        unknown = [name for name in names if name not in tokenizer.vocab]
        if unknown or len(set(names)) != COUNT:
            what = f"{unknown[0]!r} is not in the vocabulary" if unknown else f"{len(set(names))} were named"
            raise TrainingError(f"--sentinels takes four tokens of the model's vocabulary, and {what}: name others.")
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
