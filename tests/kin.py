"""Drafters that often agree with their target: the target's own weights, disturbed a little.

Knows two ways to be near: the same vocabulary, or the same bytes under other ids. Knows no engine.
"""

from __future__ import annotations

import json
from functools import cache

import torch
from tokenizers import Tokenizer

from codespec.models.language_model import LanguageModel
from codespec.text.tokenizer import TextTokenizer
from tests.pairs import network_for, wrapped
from tests.toy_tokenizers import toy_backend, toy_tokenizer


@cache
def sibling(
    architecture: str, kind: str, dtype: str = "float32", noise: float = 0.02, padding: int = 0, twin: int = 0
) -> LanguageModel:
    """Shares the vocabulary of `model(architecture, kind)`; more `noise`, less agreement."""
    tokenizer = toy_tokenizer(kind)
    return wrapped(network_for(architecture, tokenizer, noise=noise, padding=padding), tokenizer, "sibling", dtype)


@cache
def cousin(architecture: str, dtype: str = "float32", noise: float = 0.02, twin: int = 0) -> LanguageModel:
    """Spells the same bytes as `model(architecture, "bytes")`, one each, under other ids: only bytes can cross."""
    tokenizer = turned_bytes()
    network = network_for(architecture, toy_tokenizer("bytes"), noise=noise)
    theirs = {spelled: number for number, spelled in enumerate(toy_tokenizer("bytes").token_bytes) if spelled}
    order = [theirs.get(spelled, number) for number, spelled in enumerate(tokenizer.token_bytes)]
    with torch.no_grad():
        for table in (network.get_input_embeddings().weight, network.get_output_embeddings().weight):
            table.copy_(table[order].clone())
    return wrapped(network, tokenizer, "cousin", dtype)


@cache
def turned_bytes() -> TextTokenizer:
    """The one-byte vocabulary with its ids in another order; control tokens keep theirs."""
    document = json.loads(toy_backend("bytes").to_str())
    control = {token["content"] for token in document["added_tokens"]}
    names = [name for name in document["model"]["vocab"] if name not in control]
    numbers = [document["model"]["vocab"][name] for name in names]
    document["model"]["vocab"].update(zip(names, numbers[7:] + numbers[:7], strict=True))
    backend = Tokenizer.from_str(json.dumps(document))
    return TextTokenizer.from_backend(backend, eos_ids=toy_tokenizer("bytes").model_eos_ids)
