"""Which tokens of a vocabulary can mark prefix, suffix, middle and end: control tokens that the model never learned.

A token that no text ever held keeps the vector it was born with, or the one that weight decay left all such tokens:
rows that are alike. Knows vocabularies and embeddings; knows no training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from codespec.errors import TrainingError
from codespec.text.tokenizer import TextTokenizer

ALIKE = 0.999  # cosine of two rows that were never learned
COUNT = 4


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The ids that stand before a prefix, a suffix and a middle, and behind a middle."""

    prefix: int
    suffix: int
    middle: int
    end: int

    @property
    def ids(self) -> tuple[int, int, int, int]:
        """All four, in that order."""
        return astuple(self)


def choose_sentinels(tokenizer: TextTokenizer, embedding: Tensor, names: Sequence[str] = ()) -> Sentinels:
    """Four tokens by `names`, or else the last control tokens that were never learned: the first of them (`<file_sep>`)
    are the likelier to get a use.

    embedding [vocabulary, width]. TrainingError where a name is unknown or there are no four.
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
    """Control tokens whose rows are like those of two others at least."""
    ids = sorted(number for number in tokenizer.special_ids if number < len(embedding))
    rows = normalize(embedding[ids].float(), dim=1)
    alike = (rows @ rows.T > ALIKE).sum(1)
    return [number for number, count in zip(ids, alike.tolist(), strict=True) if count > 2]


def first_rows(embedding: Tensor, sentinels: Sentinels, end_ids: Sequence[int], seed: int) -> Tensor:
    """Vectors to begin with, [4, width]: three that differ from all others and from each other; the end's is that of
    the token that ends the model's own texts, which it knows how to predict.
    """
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(COUNT, embedding.shape[1], generator=generator)
    rows: Tensor = normalize(directions, dim=1) * embedding.float().norm(dim=1).median()
    if end_ids:
        rows[-1] = embedding[end_ids[0]].float()
    return rows
