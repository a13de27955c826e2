"""The models for `codespec bench step` (a local one, or random weights of a given shape), and the modes to
measure. A step's cost depends on sizes, not on trained values.

Weights of zero would do for timing on a CPU (`enlarge`), but a GPU draws less power on them and runs at other
clocks.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from codespec.backends.language_model import LanguageModel
from codespec.backends.native.model import NativeModel
from codespec.backends.torch.attention import NAME, register
from codespec.backends.torch.loader import DTYPES, find_device, wrap
from codespec.backends.torch.model import TorchModel
from codespec.errors import ModelError
from codespec.files import read_json
from codespec.startup.batch_invariance import find_variance
from codespec.store.resolve import resolve
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.bench.shapes import ModelSizes

LONGEST = 32768


def random_model(shape: ModelSizes, tokenizer: TextTokenizer, *, device: str, dtype: str, exact: bool) -> LanguageModel:
    """Return a Llama of that shape with seeded random weights, created on its device. Its texts are meaningless."""
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


def shape_of(target: str) -> ModelSizes:
    """Return the shape of a local Llama-like model from its config.json. Raise ModelError for other models."""
    config = read_json(resolve(target).folder() / "config.json")
    try:
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        head = config.get("head_dim") or hidden // heads
        return ModelSizes(
            name=target.rstrip("/").rpartition("/")[2].removesuffix(".gguf"),
            hidden=hidden,
            layers=config["num_hidden_layers"],
            query=heads * head,
            keys=config["num_key_value_heads"] * head,
            inner=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings")),
            head=head,
        )
    except (KeyError, TypeError) as error:
        raise ModelError(
            f"{target} is no Llama-like model (its config.json lacks {error}): choose another, or a --shape."
        ) from error


def step_bytes(model: LanguageModel, shape: ModelSizes, batch: int, context: int) -> int:
    """Return the bytes that a step must read: all weights except unused rows of the embedding, and each sequence's keys
    and values.
    """
    layers = 2 * shape.hidden * (shape.query + shape.keys) + 3 * shape.hidden * shape.inner
    weights = shape.layers * layers + shape.vocabulary * shape.hidden
    cached = 2 * shape.layers * shape.keys * batch * context
    if isinstance(model, NativeModel):
        return model.weight_bytes + 2 * cached
    assert isinstance(model, TorchModel)
    return weights * (1 if model.spec.dtype == "native" else model.dtype.itemsize) + cached * model.dtype.itemsize


def find_modes(model: LanguageModel, mode: str, chunk: int) -> tuple[tuple[str, ...], str]:
    """Return the modes to measure, and which outputs vary in exact mode ("": none).

    On a CPU both are measured, but only fast if exact mode does not hold. Native models are always exact, and a GPU
    has kernels of one shape, so only `mode` is measured there.
    """
    if not isinstance(model, TorchModel):
        return ("exact",), ""
    if model.device.type != "cpu":
        return (mode,), ""
    variance = find_variance(model, chunk)
    return (("fast",) if variance else ("exact", "fast")), variance
