"""The sizes of real models that a small target can be given, for benchmarks. Knows numbers; knows no weights.

A shape is what a step costs: how many bytes of weights it reads and how many bytes of keys and values a token leaves.
Heads are given by their width together, because an enlarged model keeps its own head size and has more of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from codespec.errors import ModelError


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model by its own config.json; `query` and `keys` are the widths of all its heads together, `head` of
    each.
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
        """Weights of a model of this shape, but for norms and biases."""
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
class Sizes:
    """The axes of a Llama-shaped model's weights: `groups` query heads share each of `kv_heads` key heads."""

    vocabulary: int
    hidden: int
    layers: int
    kv_heads: int
    groups: int
    head: int
    inner: int

    @classmethod
    def of(cls, config: Any) -> Sizes:
        """The sizes in a transformers configuration."""
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

    def grown(self, shape: Shape) -> Sizes:
        """These sizes brought to a shape, heads as long as they are; ModelError where that would lose something."""
        if shape.keys % self.head:
            raise ModelError(
                f"{shape.name} has {shape.keys} key features a token, which heads of {self.head} can't fill: choose "
                "another target or another target_shape."
            )
        grown = Sizes(
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
                    f"{shape.name} is smaller than this target ({axis.name} {theirs} < {own}): choose a larger "
                    "target_shape, or own."
                )
        return grown
