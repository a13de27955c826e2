"""Drafters that often agree with their target: the target's own weights plus a little noise.

A `sibling` shares the target's vocabulary; a `cousin` spells the same bytes with other ids.
"""

from __future__ import annotations

import json
from functools import cache

import torch
from tokenizers import Tokenizer

from codespec.backends.torch.model import TorchModel
from codespec.text.tokenizer import TextTokenizer
from tests.pairs import network_for, wrapped
from tests.toy_tokenizers import toy_backend, toy_tokenizer


@cache
def sibling(
    architecture: str, kind: str, dtype: str = "float32", noise: float = 0.02, padding: int = 0, twin: int = 0
) -> TorchModel:
    """Return a drafter that shares the vocabulary of `model(architecture, kind)`; more `noise`, less agreement."""
    tokenizer = toy_tokenizer(kind)
    return wrapped(network_for(architecture, tokenizer, noise=noise, padding=padding), tokenizer, "sibling", dtype)


@cache
def cousin(architecture: str, dtype: str = "float32", noise: float = 0.02, twin: int = 0) -> TorchModel:
    """Return a drafter with the bytes of `model(architecture, "bytes")` under other ids: only text can be exchanged."""
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
    """Return the one-byte vocabulary with permuted ids; control tokens keep theirs."""
    document = json.loads(toy_backend("bytes").to_str())
    control = {token["content"] for token in document["added_tokens"]}
    names = [name for name in document["model"]["vocab"] if name not in control]
    numbers = [document["model"]["vocab"][name] for name in names]
    document["model"]["vocab"].update(zip(names, numbers[7:] + numbers[:7], strict=True))
    backend = Tokenizer.from_str(json.dumps(document))
    return TextTokenizer.from_backend(backend, eos_ids=toy_tokenizer("bytes").model_eos_ids)
