"""A model of a given shape with random weights: what a step costs depends on sizes, not on what was learned.

Zeros would do for the time on a CPU (models/shapes), but a graphics processor draws less power on them and runs at
other clocks. Knows shapes and transformers' Llama; knows no text but the tokenizer it is given.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from codespec.models.attention import NAME, register
from codespec.models.language_model import LanguageModel
from codespec.models.loader import DTYPES, find_device, wrap
from codespec.models.shapes import Shape
from codespec.text.tokenizer import TextTokenizer

LONGEST = 32768


def random_model(shape: Shape, tokenizer: TextTokenizer, *, device: str, dtype: str, exact: bool) -> LanguageModel:
    """A Llama of that shape, seeded, made where it will run. Its texts mean nothing."""
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.query // shape.head,
        num_key_value_heads=shape.keys // shape.head,
        head_dim=shape.head,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=shape.tied,
    )
    where, kind = find_device(device), DTYPES[dtype]
    register()
    torch.manual_seed(0)
    with where:
        network = LlamaForCausalLM._from_config(config, dtype=kind, attn_implementation=NAME)
    return wrap(network, tokenizer, f"random {shape.name}", device=where, dtype=kind, exact=exact)


def step_bytes(model: LanguageModel, shape: Shape, batch: int, context: int) -> int:
    """Bytes that a step must read: every weight but the embedding's other rows, and each sequence's keys and values."""
    layers = 2 * shape.hidden * (shape.query + shape.keys) + 3 * shape.hidden * shape.inner
    weights = shape.layers * layers + shape.vocabulary * shape.hidden
    cached = 2 * shape.layers * shape.keys * batch * context
    return (weights + cached) * model.dtype.itemsize
