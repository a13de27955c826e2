"""Pad a small target to the sizes of a real model without changing its function, for realistic benchmark costs.

A shape determines the cost of a step: how many bytes of weights it reads, and how many bytes of keys and values a token
adds. Heads are given by their total width, because an enlarged model keeps its own head size and has more heads.

Wider rows are zero after the model's own features, every added weight is zero, and added layers add nothing. A
root-mean-square norm over h features padded to H sees h / H of the mean square, so its eps is multiplied by h / H and
its weight by sqrt(h / H). Each of the model's query heads keeps its key head.

Zeros cost as much as other values: products of Qwen2.5-0.5B's sizes took the same time within 3 % (CPU, float32 and
bfloat16, 1 to 16 rows). In bfloat16 the scaled norms round differently: the enlarged starter is as far from its float32
version as the small one (0.0001 nat).
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, fields
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from codespec.errors import ModelError
from codespec.models.attention import NAME
from codespec.models.lean import ARCHITECTURES

NORMS = ("input_layernorm", "post_attention_layernorm", "norm")  # norms of whole rows; Qwen3 has others per head
AXES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # axes of the output, axes of the input
    "embed_tokens": (("vocabulary",), ("hidden",)),
    "lm_head": (("vocabulary",), ("hidden",)),
    "q_proj": (("kv_heads", "groups", "head"), ("hidden",)),
    "k_proj": (("kv_heads", "head"), ("hidden",)),
    "v_proj": (("kv_heads", "head"), ("hidden",)),
    "o_proj": (("hidden",), ("kv_heads", "groups", "head")),
    "gate_proj": (("inner",), ("hidden",)),
    "up_proj": (("inner",), ("hidden",)),
    "down_proj": (("hidden",), ("inner",)),
    "q_norm": (("head",), ()),
    "k_norm": (("head",), ()),
    **{name: (("hidden",), ()) for name in NORMS},
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes according to its config.json.

    `query` and `keys` are the total widths of all query and key heads, `head` that of one head.
    """

    name: str
    hidden: int
    layers: int
    query: int
    keys: int
    inner: int
    vocabulary: int
    tied: bool  # whether the output head is the embedding
    head: int = 128

    @property
    def parameters(self) -> int:
        """Number of weights of a model of this shape, without norms and biases."""
        layer = self.hidden * (2 * self.query + 2 * self.keys + 3 * self.inner)
        return self.layers * layer + (2 - self.tied) * self.vocabulary * self.hidden


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("qwen2.5-0.5b", 896, 24, 14 * 64, 2 * 64, 4864, 151936, tied=True, head=64),
        Shape("qwen2.5-1.5b", 1536, 28, 12 * 128, 2 * 128, 8960, 151936, tied=True),
        Shape("qwen2.5-7b", 3584, 28, 28 * 128, 4 * 128, 18944, 152064, tied=False),
        Shape("qwen2.5-32b", 5120, 64, 40 * 128, 8 * 128, 27648, 152064, tied=False),
    )
}


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a Llama-shaped model's weights: `groups` query heads share each of `kv_heads` key heads."""

    vocabulary: int
    hidden: int
    layers: int
    kv_heads: int
    groups: int
    head: int
    inner: int

    @classmethod
    def of(cls, config: Any) -> Axes:
        """Read the sizes from a transformers configuration."""
        heads = config.num_attention_heads
        return cls(
            vocabulary=config.vocab_size,
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            kv_heads=config.num_key_value_heads,
            groups=heads // config.num_key_value_heads,
            head=getattr(config, "head_dim", None) or config.hidden_size // heads,
            inner=config.intermediate_size,
        )

    def grown(self, shape: Shape) -> Axes:
        """Grow to a shape, keeping the head size. Raise ModelError if an axis would have to shrink."""
        if shape.keys % self.head:
            raise ModelError(
                f"{shape.name} has {shape.keys} key features a token, which heads of {self.head} can't fill",
                "choose another target or another target_shape",
            )
        grown = Axes(
            vocabulary=shape.vocabulary,
            hidden=shape.hidden,
            layers=shape.layers,
            kv_heads=shape.keys // self.head,
            groups=shape.query // shape.keys,
            head=self.head,
            inner=shape.inner,
        )
        for axis in fields(self):
            own, theirs = getattr(self, axis.name), getattr(grown, axis.name)
            if own > theirs:
                raise ModelError(
                    f"{shape.name} is smaller than this target ({axis.name} {theirs} < {own})",
                    "choose a larger target_shape, or own",
                )
        return grown


def enlarge(network: Any, shape: Shape) -> Any:
    """Return a new transformers model of that shape, with the network's dtype, function and rotary embedding.

    Ids beyond the network's own vocabulary get meaningless logits, so they must never be chosen. Raises ModelError if
    the architecture is not Llama-shaped, or the shape or the memory is too small.
    """
    if type(network).__name__ not in ARCHITECTURES:
        raise ModelError(
            f"A {type(network).__name__} can't be enlarged to {shape.name}",
            "choose a Llama, Mistral, Qwen2 or Qwen3 target, or target_shape own",
        )
    own = Axes.of(network.config)
    grown = own.grown(shape)
    large = hollow(network, grown, shape)
    _check_memory(large, shape)
    large.model.rotary_emb = network.model.rotary_emb
    parameters = dict(network.named_parameters(remove_duplicate=False))
    for name, empty in list(large.named_parameters()):
        place, _, leaf = name.rpartition(".")
        weight = _padded(name, parameters.get(name), empty, own, grown)
        setattr(large.get_submodule(place), leaf, nn.Parameter(weight, requires_grad=False))
    if large.config.tie_word_embeddings:
        large.lm_head.weight = large.model.embed_tokens.weight
    _shrink_eps(large, own.hidden / grown.hidden)
    return large


def hollow(network: Any, grown: Axes, shape: Shape) -> Any:
    """Return the large model without memory for its weights. Its head is tied only if the network's is."""
    config = copy.deepcopy(network.config)
    config.vocab_size = grown.vocabulary
    config.hidden_size = grown.hidden
    config.intermediate_size = grown.inner
    config.num_key_value_heads = grown.kv_heads
    config.num_attention_heads = grown.kv_heads * grown.groups
    config.head_dim = grown.head
    config.tie_word_embeddings = bool(config.tie_word_embeddings and shape.tied)
    added = grown.layers - config.num_hidden_layers
    config.num_hidden_layers = grown.layers
    if getattr(config, "layer_types", None):
        config.layer_types = [*config.layer_types, *["full_attention"] * added]
    with torch.device("meta"):
        return type(network)._from_config(config, attn_implementation=NAME, dtype=network.dtype)


def _padded(name: str, small: Tensor | None, empty: Tensor, own: Axes, grown: Axes) -> Tensor:
    """Return one weight of the large model: the network's in the first corner of every axis, zeros elsewhere."""
    # Write the zeros: the system maps untouched memory to one shared page, which is free to read.
    large = torch.empty(empty.shape, dtype=empty.dtype).zero_()
    if small is None:  # an added layer
        return large
    module, leaf = name.split(".")[-2:]
    out, into = AXES[module]
    axes = out if leaf == "bias" else (*out, *into)
    inner, outer = ([getattr(sizes, axis) for axis in axes] for sizes in (own, grown))
    scale = (own.hidden / grown.hidden) ** 0.5 if module in NORMS else 1.0
    large.view(outer)[tuple(slice(size) for size in inner)] = small.detach().view(inner).float() * scale
    return large


def _shrink_eps(large: Any, share: float) -> None:
    for name, module in large.named_modules():
        if name.rpartition(".")[2] in NORMS:
            module.variance_epsilon *= share


def _check_memory(large: nn.Module, shape: Shape) -> None:
    """Raise ModelError if the weights exceed the machine's memory, before the system kills the process."""
    needed = sum(prod(p.shape) * p.element_size() for p in large.parameters())
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise ModelError(
            f"{shape.name} takes {needed / 2**30:.0f} GiB and this machine has {available / 2**30:.0f}",
            "choose dtype bfloat16 or a smaller target_shape",
        )
