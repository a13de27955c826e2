"""Check a converted folder's first block against transformers' layer with the same rounded weights.

Also describe the network, so that a start needs no transformers. Runs once per conversion.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM

from codespec.errors import ModelError
from codespec.models.attention import NAME, ForwardContext, Seam, register
from codespec.models.grouping import Span
from codespec.models.int8.kernels import FULL, Choice
from codespec.models.int8.linear import TINY, find_peak, fit_range, to_levels
from codespec.models.int8.network import Blueprint, FixedRotary, Int8Block, Read, mismatch, read_optional, reader
from codespec.models.int8.recipe import EMBEDDING, HEAD
from codespec.models.int8.rotation import mix
from codespec.models.lean import HEAD_NORMS, Angles, attention_window
from codespec.models.reference import read_config
from codespec.store.model_config import architecture, context_length, fits_int8

PROBE_ROWS = 6
TOLERANCE = 0.02  # relative to the largest value: rounding a half the other way changes one product by 1/127 of it


def describe(folder: Path, names: Collection[str], most: int) -> Blueprint:
    """Describe the network that transformers builds from a converted folder's config.json.

    `names` are the weights before the conversion; the converted ones are within ±`most`. Raise ModelError if the names
    don't match the network, or if int8 does not support this kind of model.
    """
    config = read_config(folder)
    skeleton = _skeleton(config)
    if not fits_int8(config.to_dict()):
        raise ModelError(f"{folder} holds a kind of model that can't be converted to int8", "use dtype bfloat16")
    wanted = {name for name, _ in skeleton.named_parameters()}
    if other := (wanted ^ set(names)) - {f"{HEAD}.weight"}:  # a tied head may be stored or not
        raise mismatch(min(other))
    layers = skeleton.model.layers
    attention, mlp = layers[0].self_attn, layers[0].mlp
    size: int = attention.head_dim
    rotary = type(skeleton.model.rotary_emb)(config)
    if 2 * len(rotary.inv_freq) != size:
        raise ModelError("The model rotates a part of each head only", "use dtype bfloat16")
    return Blueprint(
        architecture=architecture(config.to_dict()),
        parameters=sum(part.numel() for part in skeleton.parameters()),
        vocabulary=config.vocab_size,
        max_length=context_length(config.to_dict()) or 2**31,
        hidden_size=config.hidden_size,
        inner_size=mlp.down_proj.in_features,
        heads=attention.o_proj.in_features // size,
        kv_heads=attention.k_proj.out_features // size,
        head_size=size,
        epsilon=skeleton.model.norm.variance_epsilon,
        scaling=attention.scaling,
        rotary_scale=float(rotary.attention_scaling),
        windows=tuple(attention_window(layer.self_attn) or 0 for layer in layers),
        most=most,
        frequencies=tuple(rotary.inv_freq.float().tolist()),
    )


def check_block(folder: Path, plan: Blueprint, choice: Choice) -> None:
    """Raise ModelError if the folder's first block differs from transformers' layer by more than TOLERANCE."""
    read, seam = reader(folder), Seam()
    error = _gap(read, plan, seam, choice, read_config(folder))
    if not error <= TOLERANCE:
        raise ModelError(f"The int8 block of {folder} differs by {error:.2g} from its model's", "use dtype bfloat16")


def _skeleton(config: Any) -> Any:
    """Build transformers' network without weights."""
    register()
    loader: Any = AutoModelForCausalLM
    with torch.device("meta"):
        return loader.from_config(copy.deepcopy(config), attn_implementation=NAME, trust_remote_code=False)


class _Reference(nn.Module):
    """Reference int8 product: round the rows, multiply in float32, and scale."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, is_mixed: bool) -> None:
        super().__init__()
        self.weight, self.scale, self.bias, self.is_mixed = weight.float(), scale, bias, is_mixed

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply to inputs [1, N, in] → [1, N, out]."""
        rows = mix(inputs[0]) if self.is_mixed else inputs[0]
        peak = find_peak(rows)
        out = linear(to_levels(rows, peak).nan_to_num(), self.weight) * self.scale * (peak / FULL)
        return (out if self.bias is None else out + self.bias)[None]


@torch.inference_mode()
def _gap(read: Read, plan: Blueprint, seam: Seam, choice: Choice, config: Any) -> float:
    """Return the largest difference between the outputs of the first block and of transformers' layer for a few rows of
    the embedding, relative to the largest output.
    """
    block = Int8Block(plan, 0, seam, read, choice)
    skeleton = _skeleton(config)
    layer = _reference_layer(type(skeleton.model.layers[0])(skeleton.config, 0).eval(), block, plan, read, choice)
    rows = read(EMBEDDING)[:PROBE_ROWS].float()
    seam.context = ForwardContext([Span(0, 0, 0, PROBE_ROWS)], None)
    positions = torch.arange(PROBE_ROWS)[None]
    cosine, sine = type(skeleton.model.rotary_emb)(config)(rows, positions)
    wanted: Tensor = layer(rows[None], position_embeddings=(cosine, sine))[0]
    got = block(rows, *Angles(FixedRotary(plan), seam).at(rows, positions))
    return float((wanted - got).abs().max() / wanted.abs().max().clamp(min=TINY))


def _reference_layer(layer: Any, block: Int8Block, plan: Blueprint, read: Read, choice: Choice) -> Any:
    """Fill transformers' first layer with the converted weights and connect it to our attention."""
    layer.self_attn.codespec_seam = block.attention.codespec_seam
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        norm.weight.data = torch.ones_like(norm.weight.data)  # the matrices include the gains
    for name, head_norm in zip(HEAD_NORMS, block.head_norms, strict=False):
        getattr(layer.self_attn, name).weight.data = head_norm.weight
    query, key = plan.heads * plan.head_size, plan.kv_heads * plan.head_size
    parts = {
        "self_attn.qkv": (layer.self_attn, {"q_proj": query, "k_proj": key, "v_proj": key}),
        "self_attn.out": (layer.self_attn, {"o_proj": plan.hidden_size}),
        "mlp.gate_up": (layer.mlp, dict.fromkeys(("gate_proj", "up_proj"), plan.inner_size)),
        "mlp.down": (layer.mlp, {"down_proj": plan.hidden_size}),
    }
    for path, (parent, sizes) in parts.items():
        name = f"model.layers.0.{path}"
        codes, scale = fit_range(read(f"{name}.weight"), read(f"{name}.scale"), plan.most, choice.most)
        bias = read_optional(read, f"{name}.bias", scale.shape)
        split = list(sizes.values())
        biases = [None] * len(split) if bias is None else list(bias.split(split))
        columns = zip(sizes, codes.split(split), scale.split(split), biases, strict=True)
        for target, weight, scales, added in columns:
            setattr(parent, target, _Reference(weight, scales, added, is_mixed=target == "down_proj"))
    return layer
