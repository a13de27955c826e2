"""Recognize folders with int8 weights that need no dequantization: W8A8 of compressed-tensors.

codespec's int8 products take symmetric weights with one scale per output, and scale each row of activations
dynamically. Other int8 folders are dequantized first (`conversions.convert_quantized`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from codespec.store.model_config import fits_int8
from codespec.store.weights import StoredTensor, read_header, weight_files
from codespec.text.control_tokens import read_json

SCALE = "_scale"  # suffix of a matrix's name, for its scales
_KNOWN = (".weight", ".bias", f".weight{SCALE}")
_FLOATS = ("F32", "BF16", "F16")
_MORE = ("sparsity_config", "transform_config")  # further settings that change the weights


def is_row_scaled(folder: Path) -> bool:
    """Return whether a folder's int8 weights can be used as stored. Raises ModelError for truncated files."""
    config = read_json(folder / "config.json")
    if not fits_int8(config) or not _has_scheme(config.get("quantization_config")):
        return False
    tensors = {tensor.name: tensor for file in weight_files(folder) for tensor in read_header(file)}
    if not all(name.endswith(_KNOWN) for name, tensor in tensors.items() if not tensor.is_buffer):
        return False
    scaled = {name.removesuffix(SCALE) for name in tensors if name.endswith(SCALE)}
    rounded = {name for name, tensor in tensors.items() if tensor.dtype == "I8"}
    return bool(rounded) and rounded == scaled and all(_fits(tensors[n], tensors[n + SCALE]) for n in rounded)


def _has_scheme(quantization: Any) -> bool:
    groups = quantization.get("config_groups") if isinstance(quantization, dict) else None
    group = next(iter(groups.values())) if isinstance(groups, dict) and len(groups) == 1 else None
    if not isinstance(group, dict) or any(quantization.get(name) for name in _MORE):
        return False
    kind = quantization.get("quant_method"), quantization.get("format")
    weights, rows = group.get("weights"), group.get("input_activations")
    return (
        kind == ("compressed-tensors", "int-quantized")
        and _is_int8(weights, strategy="channel")
        and _is_int8(rows, strategy="token", dynamic=True)
    )


def _is_int8(settings: Any, **wanted: object) -> bool:
    """Return whether settings describe symmetric 8-bit integers and have the wanted values."""
    if not isinstance(settings, dict):
        return False
    defaults = {"num_bits": 8, "type": "int", "symmetric": True}  # compressed-tensors' own
    values, needed = {**defaults, **settings}, {**defaults, **wanted}
    return all(values.get(name) == value for name, value in needed.items())


def _fits(matrix: StoredTensor, scale: StoredTensor) -> bool:
    """Return whether a tensor is a matrix of a layer, or the head, with one scale per output."""
    if len(matrix.shape) != 2 or not matrix.name.endswith(("_proj.weight", "lm_head.weight")):
        return False
    return scale.dtype in _FLOATS and scale.shape in (matrix.shape[:1], (matrix.shape[0], 1))
