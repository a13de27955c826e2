"""Loads a converted folder into an int8 network, matrix by matrix, and checks its block against transformers' own.

Only the packed matrices stay in memory: what is read is freed before the next is read, and the embedding stays in its
file, from which a step takes a few rows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from codespec.errors import ModelError
from codespec.model_folders.conversions import INT8_RECIPE, int8_recipe
from codespec.model_folders.model_config import fits_int8
from codespec.model_folders.weights import read_layout
from codespec.models.attention import NAME, ForwardContext, Seam
from codespec.models.int8.kernels import FULL, Choice
from codespec.models.int8.linear import TINY, Int8Linear, find_peak, fit_range, quantize_weight, to_levels
from codespec.models.int8.network import Int8Block, Int8Network, Read, read_optional
from codespec.models.int8.recipe import EMBEDDING
from codespec.models.int8.rotation import mix
from codespec.models.rowwise import make_angles
from codespec.models.span_groups import Span

PROBE_ROWS = 6
TOLERANCE = 0.02  # of the largest value: a code that falls to the other side of a half changes a 127th of one product
_FORMATS = {"I8": np.int8, "F16": np.float16, "F32": np.float32}


def is_converted(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a folder that `models.int8.convert` wrote, by the current recipe."""
    return int8_recipe(config) == INT8_RECIPE


def load_network(folder: Path, config: Any, seam: Seam, choice: Choice) -> Int8Network:
    """The network of a converted folder. ModelError if its first block computes something else than transformers' layer
    with the same rounded weights.
    """
    read = _reader(folder / "model.safetensors")
    loader: Any = AutoModelForCausalLM
    with torch.device("meta"):
        skeleton = loader.from_config(copy.deepcopy(config), attn_implementation=NAME, trust_remote_code=False)
    seam.attach(skeleton)
    if not fits_int8(config.to_dict()):
        raise ModelError(f"{folder} claims int8 weights of another kind of model: fetch or convert the model again.")
    try:
        network = Int8Network(skeleton, seam, read, choice)
    except KeyError as error:
        raise ModelError(
            f"{folder} lacks the weight {error.args[0]}: remove the folder; the next start converts the model again."
        ) from error
    except (AssertionError, RuntimeError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"The int8 weights in {folder} don't fit each other ({why}): convert the model again."
        ) from error
    found = _gap(network, read, choice)
    if not found <= TOLERANCE:
        raise ModelError(f"The int8 block of {folder} differs by {found:.2g} from its model's: use dtype bfloat16.")
    return network


def quantize_linears(model: nn.Module, choice: Choice) -> int:
    """Replaces every linear layer of a float model in place, without rotating anything; returns how many."""
    made: dict[int, Int8Linear] = {}
    for parent in [module for module in model.modules() if module._modules]:
        for name, child in list(parent._modules.items()):
            if type(child) is nn.Linear or type(child) is Conv1D:
                if id(child) not in made:
                    bias = None if child.bias is None else child.bias.detach().float()
                    weight = child.weight.detach().float()  # GPT-2 keeps its weights the other way round
                    codes, scale = quantize_weight(weight.T if isinstance(child, Conv1D) else weight)
                    made[id(child)] = Int8Linear(codes, scale, bias, choice)
                setattr(parent, name, made[id(child)])
    return len(made)


def _reader(file: Path) -> Read:
    """Reads tensors of a safetensors file by name: copies, and the embedding as a view of the file."""
    layout = {tensor.name: (offset, tensor) for offset, tensor in read_layout(file)}

    def read(name: str) -> Tensor:
        offset, tensor = layout[name]
        form = _FORMATS.get(tensor.dtype)
        if form is None:
            raise ModelError(f"{file} stores {name} in a form that no conversion writes: convert the model again.")
        if name == EMBEDDING:
            return torch.from_numpy(np.memmap(file, form, mode="c", offset=offset, shape=tensor.shape))
        values = np.fromfile(file, form, count=tensor.count, offset=offset)
        return torch.from_numpy(values).view(tensor.shape)

    return read


class _Reference(nn.Module):
    """A layer's product by its definition: rows rounded, multiplied in float32, scaled."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, mixes: bool) -> None:
        super().__init__()
        self.weight, self.scale, self.bias, self.mixes = weight.float(), scale, bias, mixes

    def forward(self, inputs: Tensor) -> Tensor:
        """[1, N, in] → [1, N, out]."""
        rows = mix(inputs[0]) if self.mixes else inputs[0]
        peak = find_peak(rows)
        out = linear(to_levels(rows, peak).nan_to_num(), self.weight) * self.scale * (peak / FULL)
        return (out if self.bias is None else out + self.bias)[None]


@torch.inference_mode()
def _gap(network: Int8Network, read: Read, choice: Choice) -> float:
    """The largest difference between the first block and transformers' layer, for a few rows of the embedding."""
    block: Int8Block = network.blocks[0]  # type: ignore[assignment]
    layer = _reference_layer(network, block, read, choice)
    rows = network.embedding[:PROBE_ROWS].float()
    context = ForwardContext([Span(0, 0, 0, PROBE_ROWS)], None)
    seam = network.angles.seam
    seam.context = context
    try:
        cosine, sine = network.angles.rotary(rows, torch.arange(PROBE_ROWS)[None])
        if cosine.shape[-1] != block.size:
            raise ModelError("The model rotates a part of each head only: use dtype bfloat16.")
        wanted: Tensor = layer(rows[None], position_embeddings=(cosine, sine))[0]
        got = block(rows, *make_angles(cosine[0, :, None], sine[0, :, None]))
    finally:
        seam.context = None
    return float((wanted - got).abs().max() / wanted.abs().max().clamp(min=TINY))


def _reference_layer(network: Int8Network, block: Int8Block, read: Read, choice: Choice) -> Any:
    """transformers' first layer with the converted weights; its attention is ours."""
    layer = network.layer_type(network.config, 0).eval()
    layer.self_attn.codespec_seam = block.attention.codespec_seam
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        norm.weight.data = torch.ones_like(norm.weight.data)
    for name, weight in zip(("q_norm", "k_norm"), block.head_norms, strict=False):
        getattr(layer.self_attn, name).weight.data = weight
    query, key = block.heads * block.size, block.kv_heads * block.size
    parts = {
        "self_attn.qkv": (layer.self_attn, {"q_proj": query, "k_proj": key, "v_proj": key}),
        "self_attn.out": (layer.self_attn, {"o_proj": block.out.out_features}),
        "mlp.gate_up": (layer.mlp, dict.fromkeys(("gate_proj", "up_proj"), block.gate_up.out_features // 2)),
        "mlp.down": (layer.mlp, {"down_proj": block.down.out_features}),
    }
    for path, (parent, sizes) in parts.items():
        name = f"model.layers.0.{path}"
        codes, scale = fit_range(read(f"{name}.weight"), read(f"{name}.scale"), choice.most)
        bias = read_optional(read, f"{name}.bias")
        split = list(sizes.values())
        biases = [None] * len(split) if bias is None else list(bias.split(split))
        columns = zip(sizes, codes.split(split), scale.split(split), biases, strict=True)
        for target, weight, scales, added in columns:
            setattr(parent, target, _Reference(weight, scales, added, mixes=target == "down_proj"))
    return layer
