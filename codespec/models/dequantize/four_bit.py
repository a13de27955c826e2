"""Weights of 4 or 8 bits in groups along the inputs: GPTQ, AWQ, and the packed form of compressed-tensors.

Each packs several numbers into 32 bits. GPTQ packs along the inputs and may assign inputs to groups in any order
(`g_idx`); AWQ packs along the outputs, in the order of AWQ_ORDER; compressed-tensors packs along the inputs of
transposed matrices and has no zero points where it is symmetric.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from codespec.models.dequantize.stored import Plain, Stored

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place of each output among the eight of 32 bits
_FLOATS = ("F32", "BF16", "F16")


def gptq_weight(stored: Stored, name: str, bits: int, group: int, *, shifted: bool) -> Plain:
    """Return a weight [out, in]; `shifted`: zero points are stored minus one, as GPTQ's first format does."""
    each = 32 // bits
    stored.demand(f"{name}.qweight", (-1, -1), "I32")
    inputs, outputs = stored.entries[f"{name}.qweight"].shape
    inputs *= each
    group = min(group, inputs) if group > 0 else inputs
    groups = -(-inputs // group)
    stored.demand(f"{name}.scales", (groups, outputs), *_FLOATS)
    stored.demand(f"{name}.qzeros", (groups, -(-outputs // each)), "I32")
    if f"{name}.g_idx" in stored.entries:
        stored.demand(f"{name}.g_idx", (inputs,), "I32")
    return Plain(f"{name}.weight", (outputs, inputs), partial(_gptq, stored, name, bits, group, shifted=shifted))


def _gptq(stored: Stored, name: str, bits: int, group: int, *, shifted: bool) -> Iterator[Tensor]:
    codes = unpack(stored.read(f"{name}.qweight").T, bits).T  # [in, out]
    scales = stored.read(f"{name}.scales").float()
    zeros = unpack(stored.read(f"{name}.qzeros"), bits)[:, : scales.shape[1]]
    if f"{name}.g_idx" in stored.entries:
        of = stored.read(f"{name}.g_idx").long()
        if not (int(of.min()) >= 0 and int(of.max()) < len(scales)):
            raise stored.broken(f"{name}.g_idx names groups that are not there")
    else:
        of = torch.arange(len(codes)) // group
    zeros = (zeros + int(shifted)) & ((1 << bits) - 1)
    yield ((codes - zeros[of]).float() * scales[of]).T


def awq_weight(stored: Stored, name: str, bits: int, group: int) -> Plain:
    """Return a weight [out, in]."""
    each = 32 // bits
    stored.demand(f"{name}.qweight", (-1, -1), "I32")
    inputs, outputs = stored.entries[f"{name}.qweight"].shape
    group = min(group, inputs) if group > 0 else inputs
    stored.demand(f"{name}.scales", (-(-inputs // group), outputs * each), *_FLOATS)
    stored.demand(f"{name}.qzeros", (-(-inputs // group), outputs), "I32")
    return Plain(f"{name}.weight", (outputs * each, inputs), partial(_awq, stored, name, bits, group))


def _awq(stored: Stored, name: str, bits: int, group: int) -> Iterator[Tensor]:
    codes, zeros = (_ordered(unpack(stored.read(f"{name}.{one}"), bits)) for one in ("qweight", "qzeros"))
    of = torch.arange(len(codes)) // group
    yield ((codes - zeros[of]).float() * stored.read(f"{name}.scales").float()[of]).T


def _ordered(codes: Tensor) -> Tensor:
    """Return numbers in the order of the outputs."""
    words = codes.view(len(codes), -1, len(AWQ_ORDER))
    return words[:, :, list(AWQ_ORDER)].flatten(1)


def packed_weight(stored: Stored, name: str, bits: int, group: int) -> Plain:
    """Return a weight [out, in] of compressed-tensors' form "pack-quantized", symmetric."""
    stored.demand(f"{name}.weight_packed", (-1, -1), "I32")
    stored.demand(f"{name}.weight_shape", (2,))
    outputs, inputs = (int(size) for size in stored.read(f"{name}.weight_shape").tolist())
    if min(outputs, inputs) < 1:
        raise stored.broken(f"{name}.weight_shape is [{outputs}, {inputs}]")
    group = min(group, inputs) if group > 0 else inputs
    stored.demand(f"{name}.weight_packed", (outputs, -(-inputs * bits // 32)), "I32")
    stored.demand(f"{name}.weight_scale", (outputs, -(-inputs // group)), *_FLOATS)
    return Plain(f"{name}.weight", (outputs, inputs), partial(_packed, stored, name, bits, group, inputs))


def _packed(stored: Stored, name: str, bits: int, group: int, inputs: int) -> Iterator[Tensor]:
    codes = unpack(stored.read(f"{name}.weight_packed"), bits)[:, :inputs] - (1 << (bits - 1))
    scales = stored.read(f"{name}.weight_scale").float().repeat_interleave(group, 1)[:, :inputs]
    yield codes.float() * scales


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Return the unsigned numbers [rows, count * 32 / bits] of 32-bit words [rows, count], lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((packed[..., None] >> shifts) & ((1 << bits) - 1)).flatten(1)
