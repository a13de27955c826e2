"""Decide from a folder's `quantization_config` how its weights are stored, and list the plain weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from codespec.errors import ModelError
from codespec.models.dequantize.formats import (
    FLOAT8,
    Plain,
    Quantized,
    awq_weight,
    gptq_weight,
    mxfp4_weight,
    packed_weight,
    scaled_weight,
)

INSTEAD = "use the original model, its GGUF file, or its fp8, int8 (W8A8), GPTQ or AWQ form"
PLAIN = ("F32", "BF16", "F16")
# Tensors beside a weight that plain products do not need: static scales of activations and of the cache.
_DROPPED = (".input_scale", ".k_scale", ".v_scale", ".q_scale", ".output_scale", ".g_idx", ".weight_g_idx")
_PACKED_BITS = (4, 8)


def plain_weights(stored: Quantized, quantization: Mapping[str, Any]) -> list[Plain]:
    """Return every weight of the plain model. Raise ModelError for an unknown scheme or damaged tensors."""
    read = _SCHEMES.get(_method(stored, quantization))
    if read is None:
        raise unknown(stored, _method(stored, quantization))
    weights = read(stored, quantization)
    taken = {weight.name for weight in weights}
    for name, entry in stored.entries.items():
        if entry.dtype in PLAIN and name not in taken and not _is_part(name, taken):
            weights.append(Plain(name, entry.shape, partial(_whole, stored, name)))
            taken.add(name)
    for name, entry in stored.entries.items():
        if name not in taken and not _is_part(name, taken) and not entry.is_buffer:
            raise unknown(stored, f"{entry.dtype} ({name})")
    return weights


def unknown(stored: Quantized, scheme: str) -> ModelError:
    """Return the error for weights in a form that can't be read."""
    return ModelError(f"{stored.folder} is quantized as {scheme}, which can't be read", INSTEAD)


def _whole(stored: Quantized, name: str) -> Iterator[Tensor]:
    yield stored.read(name)


def _is_part(name: str, taken: set[str]) -> bool:
    """Return whether a tensor belongs to a weight that is made of several."""
    if name.endswith(_DROPPED):
        return True
    base, _, part = name.rpartition(".")
    stem = name.removesuffix("_blocks").removesuffix("_scales")
    parts = ("weight_scale_inv", "weight_scale", "qweight", "qzeros", "scales", "weight_packed", "weight_shape")
    return (part in parts and f"{base}.weight" in taken) or (stem != name and stem in taken)


def _method(stored: Quantized, quantization: Mapping[str, Any]) -> str:
    method = str(quantization.get("quant_method") or "unknown")[:40]
    return f"compressed-tensors {str(quantization.get('format'))[:40]}" if method == "compressed-tensors" else method


def _fp8(stored: Quantized, quantization: Mapping[str, Any]) -> list[Plain]:
    return _scaled(stored, FLOAT8, _block(stored, quantization.get("weight_block_size")))


def _scaled(stored: Quantized, dtypes: tuple[str, ...], block: tuple[int, int] = (1, 1)) -> list[Plain]:
    weights = []
    for name, entry in stored.entries.items():
        if entry.dtype in dtypes and len(entry.shape) > 1:
            scales = [f"{name}_scale_inv", f"{name}_scale"]
            scale = next((scale for scale in scales if scale in stored.entries), scales[0])
            weights.append(scaled_weight(stored, name, scale, block))
    return weights


def _float_quantized(stored: Quantized, quantization: Mapping[str, Any]) -> list[Plain]:
    return _scaled(stored, FLOAT8, _block(stored, _weights(stored, quantization).get("block_structure")))


def _int_quantized(stored: Quantized, quantization: Mapping[str, Any]) -> list[Plain]:
    _symmetric(stored, quantization)
    return _scaled(stored, ("I8",))


def _pack_quantized(stored: Quantized, quantization: Mapping[str, Any]) -> list[Plain]:
    weights = _symmetric(stored, quantization)
    bits, group = _bits(stored, weights.get("num_bits")), _group(stored, weights.get("group_size"))
    if any(name.endswith(".weight_g_idx") for name in stored.entries):
        raise unknown(stored, "groups of inputs in an order of their own")
    return [packed_weight(stored, name, bits, group) for name in _layers(stored, ".weight_packed")]


def _mxfp4(stored: Quantized, quantization: Mapping[str, Any]) -> list[Plain]:
    return [mxfp4_weight(stored, name) for name in _layers(stored, "_blocks")]


def _gptq(stored: Quantized, quantization: Mapping[str, Any]) -> list[Plain]:
    bits, group = _bits(stored, quantization.get("bits")), _group(stored, quantization.get("group_size"))
    shifted = quantization.get("checkpoint_format") != "gptq_v2"
    return [gptq_weight(stored, name, bits, group, shifted=shifted) for name in _layers(stored, ".qweight")]


def _awq(stored: Quantized, quantization: Mapping[str, Any]) -> list[Plain]:
    version, bits = str(quantization.get("version") or "gemm").lower(), quantization.get("bits")
    if version != "gemm" or bits != 4:
        raise unknown(stored, f"awq {version} of {bits} bits")
    group = _group(stored, quantization.get("group_size"))
    return [awq_weight(stored, name, 4, group) for name in _layers(stored, ".qweight")]


def _layers(stored: Quantized, suffix: str) -> list[str]:
    """Return the names of the layers that have a tensor with this suffix. Raise ModelError if there is none."""
    layers = [name.removesuffix(suffix) for name in stored.entries if name.endswith(suffix)]
    if not layers:
        raise stored.broken(f"no tensor ends in {suffix}")
    return layers


def _block(stored: Quantized, block: Any) -> tuple[int, int]:
    """Return the size of blocks with a scale; (1, 1) if there are none."""
    if block is None:
        return 1, 1
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise unknown(stored, f"fp8 in blocks of {str(block)[:40]}")
    return block[0], block[1]


def _group(stored: Quantized, group: Any) -> int:
    """Return the number of inputs per scale; 0: all."""
    if group is None or (type(group) is int and group >= -1):
        return max(0, group or 0)
    raise unknown(stored, f"groups of {str(group)[:40]}")


def _bits(stored: Quantized, bits: Any) -> int:
    if type(bits) is not int or bits not in _PACKED_BITS:
        raise unknown(stored, f"numbers of {str(bits)[:40]} bits")
    return int(bits)


def _weights(stored: Quantized, quantization: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the only group of weights."""
    groups = quantization.get("config_groups")
    listed = list(groups.values()) if isinstance(groups, dict) else []
    if len(listed) != 1 or not isinstance(listed[0], dict) or not isinstance(listed[0].get("weights"), dict):
        raise unknown(stored, "compressed-tensors in several groups")
    weights: Mapping[str, Any] = listed[0]["weights"]
    return weights


def _symmetric(stored: Quantized, quantization: Mapping[str, Any]) -> Mapping[str, Any]:
    weights = _weights(stored, quantization)
    if not weights.get("symmetric", True):
        raise unknown(stored, "compressed-tensors with zero points")
    return weights


_SCHEMES: dict[str, Callable[[Quantized, Mapping[str, Any]], list[Plain]]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": _mxfp4,
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors float-quantized": _float_quantized,
    "compressed-tensors int-quantized": _int_quantized,
    "compressed-tensors pack-quantized": _pack_quantized,
}
