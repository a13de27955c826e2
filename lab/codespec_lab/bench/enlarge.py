"""Write a small target, padded to the sizes of a real model: the same texts at a large model's cost.

The result is an ordinary model folder, so that daemons and other programs load it as any other. Added weights are
zeros, which cost as much as other values: products of Qwen2.5-0.5B's sizes took the same time within 3 % (CPU, float32
and bfloat16, 1 to 16 rows).

A root-mean-square norm over h features padded to H sees h / H of the mean square, so its eps is multiplied by h / H and
its weight by sqrt(h / H). The first added feature holds a small constant in every row, which eps pays for. Only the
output head reads it: it makes the logits of the added ids so low that they are never chosen.

`python -m codespec_lab.bench.enlarge SHAPE FOLDER` writes the starter's target.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import floor, log2, prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from codespec.api.config import SHIPPED, EngineConfig
from codespec.errors import ModelError
from codespec.files import read_json
from codespec.store.resolve import resolve
from codespec_lab.bench.shapes import OWN, SHAPES, ModelSizes

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
HEAD_WEIGHT, LOW = 100.0, -60_000.0  # the constant's weight in the last norm, and in an added id's row
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
}


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a Llama-like model's weights: `groups` query heads share each of `kv_heads` key heads."""

    vocabulary: int
    hidden: int
    layers: int
    kv_heads: int
    groups: int
    head: int
    inner: int

    @classmethod
    def of(cls, config: Any) -> Axes:
        """Read the sizes from a config.json."""
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        return cls(
            vocabulary=config["vocab_size"],
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            kv_heads=kv_heads,
            groups=heads // kv_heads,
            head=config.get("head_dim") or config["hidden_size"] // heads,
            inner=config["intermediate_size"],
        )

    def grown(self, shape: ModelSizes) -> Axes:
        """Grow to a shape, keeping the head size. Raise ModelError if an axis would have to shrink."""
        if shape.keys % self.head:
            raise ModelError(
                f"{shape.name} has {shape.keys} key features a token, which heads of {self.head} can't fill",
                "choose another target or another --shape",
            )
        kv_heads, groups = shape.keys // self.head, shape.query // shape.keys
        grown = Axes(shape.vocabulary, shape.hidden, shape.layers, kv_heads, groups, self.head, shape.inner)
        for axis in self.__slots__:
            own, theirs = getattr(self, axis), getattr(grown, axis)
            if own > theirs or (axis == "hidden" and own == theirs):  # at least one added feature
                raise ModelError(
                    f"{shape.name} is too small for this target ({axis} {theirs}, own {own})",
                    "choose a larger --shape, or leave it out",
                )
        return grown


@contextmanager
def enlarged(config: EngineConfig, shape: str) -> Iterator[EngineConfig]:
    """Yield the configuration with its target padded to the size of `shape`; unchanged for OWN."""
    if shape == OWN:
        yield config
        return
    with TemporaryDirectory(prefix="codespec-bench-") as folder:
        target = Path(folder) / f"{Path(config.target).name}-as-{shape}"
        write_enlarged(resolve(config.target).folder(), SHAPES[shape], target)
        yield replace(config, target=str(target))


def write_enlarged(source: Path, shape: ModelSizes, folder: Path) -> None:
    """Write the model of a folder, padded to `shape`. Raise ModelError if its architecture or sizes do not allow it."""
    config = read_json(source / "config.json")
    if not set(config.get("architectures", ())) & set(ARCHITECTURES):
        raise ModelError(f"{source} can't be padded to {shape.name}", "choose a Llama, Mistral or Qwen2 target")
    own = Axes.of(config)
    grown, eps = own.grown(shape), config["rms_norm_eps"] * own.hidden / shape.hidden
    # A power of two is exact in every format; its mean square is at most a half of what eps adds.
    constant = 2.0 ** floor(log2(eps * shape.hidden / 2) / 2)
    weights: dict[str, Tensor] = {}
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            weights |= {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    if config.get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    if "lm_head.weight" not in weights and not shape.tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    padded = {name: _padded(name, weight, own, grown) for name, weight in weights.items()}
    _silence(padded, own, constant)
    for name, weight in list(padded.items()):
        prefix, _, rest = name.partition("layers.0.")
        for layer in range(own.layers, grown.layers) if rest else ():
            padded[f"{prefix}layers.{layer}.{rest}"] = torch.zeros_like(weight)
    folder.mkdir(parents=True)
    for file in source.glob("*.json"):
        if not file.name.endswith(".index.json"):
            shutil.copy(file, folder)
    changes = {
        "vocab_size": grown.vocabulary,
        "hidden_size": grown.hidden,
        "intermediate_size": grown.inner,
        "num_hidden_layers": grown.layers,
        "num_key_value_heads": grown.kv_heads,
        "num_attention_heads": grown.kv_heads * grown.groups,
        "head_dim": grown.head,
        "tie_word_embeddings": "lm_head.weight" not in padded,
        "rms_norm_eps": eps - constant**2 / shape.hidden,
    }
    if config.get("layer_types"):
        changes["layer_types"] = [*config["layer_types"], *["full_attention"] * (grown.layers - own.layers)]
    (folder / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    save_file(padded, folder / "model.safetensors", {"format": "pt"})


def _padded(name: str, small: Tensor, own: Axes, grown: Axes) -> Tensor:
    """Return one weight of the large model: the small one's in the first corner of every axis, zeros elsewhere."""
    module, leaf = name.split(".")[-2:]
    norm = module not in AXES
    out, into = AXES.get(module, (("hidden",), ()))
    axes = out if leaf == "bias" else (*out, *into)
    inner, outer = ([getattr(sizes, axis) for axis in axes] for sizes in (own, grown))
    scale = (own.hidden / grown.hidden) ** 0.5 if norm else 1.0
    large = torch.zeros(outer, dtype=torch.float32 if norm else small.dtype)
    large[tuple(slice(size) for size in inner)] = small.view(inner) * scale
    return large.view(prod(outer[: len(out)]), -1) if small.ndim == 2 else large.flatten()


def _silence(padded: dict[str, Tensor], own: Axes, constant: float) -> None:
    """Make the logits of the added ids low: by a constant feature that only the output head reads."""
    feature, head = own.hidden, padded.get("lm_head.weight", padded["model.embed_tokens.weight"])
    padded["model.embed_tokens.weight"][: own.vocabulary, feature] = constant
    padded["model.norm.weight"][feature] = HEAD_WEIGHT
    head[own.vocabulary :, feature] = LOW


if __name__ == "__main__":
    write_enlarged(SHIPPED / "target", SHAPES[sys.argv[1]], Path(sys.argv[2]))
