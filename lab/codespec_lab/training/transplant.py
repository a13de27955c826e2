"""Begins a model with the layers of another one that has other tokens.

A token's vector is the mean of the vectors of the tokens that spell it there. So what the layers learned over millions
of tokens is kept, and only the token vectors are learned anew.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from codespec_lab.training.export import load_weights
from codespec_lab.training.llama import TinyLlama
from codespec_lab.training.tokenizer_training import SPECIALS, load_tokenizer, without_dummy_prefix

VECTORS = "model.embed_tokens.weight"


@torch.no_grad()
def take_layers(model: TinyLlama, tokenizer: Tokenizer, folder: Path) -> None:
    """Fills `model`, whose tokens are the tokenizer's, with what the donor in `folder` learned. Raises TrainingError
    where its layers have other sizes.
    """
    spelling = load_tokenizer(folder)
    donor = TinyLlama(replace(model.shape, vocab_size=spelling.get_vocab_size()))
    load_weights(donor, folder)
    weights = donor.state_dict()
    vectors = weights[VECTORS]
    inside = without_dummy_prefix(spelling)
    rows = [_ids(token, tokenizer, inside) for token in range(model.shape.vocab_size)]
    weights[VECTORS] = torch.stack([vectors[ids].mean(dim=0) for ids in rows])
    model.load_state_dict(weights)


def _ids(token: int, tokenizer: Tokenizer, spelling: Tokenizer) -> list[int]:
    """The donor's tokens that spell a token as it stands in the middle of a line; all of them where none does."""
    name = tokenizer.id_to_token(token)
    special = spelling.token_to_id(name) if name in SPECIALS else None
    if special is not None:
        return [special]
    ids: list[int] = spelling.encode(tokenizer.decode([token]), add_special_tokens=False).ids
    return ids or list(range(spelling.get_vocab_size()))
