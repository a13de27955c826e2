"""Sizes of real models: what determines the cost of a step. Imports no model code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """A Llama-like model's sizes.

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
        ModelSizes("qwen2.5-0.5b", 896, 24, 14 * 64, 2 * 64, 4864, 151936, tied=True, head=64),
        ModelSizes("qwen2.5-1.5b", 1536, 28, 12 * 128, 2 * 128, 8960, 151936, tied=True),
        ModelSizes("qwen2.5-7b", 3584, 28, 28 * 128, 4 * 128, 18944, 152064, tied=False),
        ModelSizes("qwen2.5-32b", 5120, 64, 40 * 128, 8 * 128, 27648, 152064, tied=False),
    )
}
OWN = "own"  # the target's own size
