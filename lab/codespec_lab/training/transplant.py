"""Initialize a model with the layers of another model that has a different tokenizer.

A token's vector is the mean of the donor's vectors of the tokens that spell it. The trained layers are kept, and only
the token vectors are learned anew.
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
    """Fill `model`, which uses `tokenizer`, from the donor in `folder`. Raise TrainingError if layer sizes differ."""
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
    """Return the donor's tokens that spell a token within a line, or all of its tokens if none do."""
    name = tokenizer.id_to_token(token)
    special = spelling.token_to_id(name) if name in SPECIALS else None
    if special is not None:
        return [special]
    ids: list[int] = spelling.encode(tokenizer.decode([token]), add_special_tokens=False).ids
    return ids or list(range(spelling.get_vocab_size()))
