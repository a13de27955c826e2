"""Weights of 4 and 8 bits in the forms of fp8, int8, mxfp4, GPTQ, AWQ and compressed-tensors, as plain weights.

fp8 and int8 have one scale per tensor, output or block. GPTQ, AWQ and the packed form of compressed-tensors have one
per group of inputs, and pack several numbers into 32 bits. GPTQ packs along the inputs, which may belong to groups in
any order (`g_idx`); AWQ along the outputs, in the order of AWQ_ORDER; compressed-tensors along the inputs of transposed
matrices, without zero points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from codespec.errors import ModelError
from codespec.models.stored import Stored

FLOAT8 = ("F8_E4M3", "F8_E5M2")
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # index of each output among the eight in 32 bits
_FLOATS = ("F32", "BF16", "F16")
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # OCP microscaling formats 1.0, E2M1
_BIAS = 127  # bias of a scale's exponent (E8M0)


@dataclass(frozen=True, slots=True)
class Plain:
    """A weight of the plain model: its name, its shape, and a function that yields it as float32, row after row."""

    name: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Tensor]]


class Quantized(Stored):
    """The tensors of a quantized folder."""

    def demand(self, name: str, shape: tuple[int, ...], *dtypes: str) -> None:
        """Raise ModelError unless a tensor exists, with this shape (-1: any size but 0) and one of these formats."""
        entry = self.entries.get(name)
        if entry is None:
            raise self.broken(f"{name} is missing")
        fits = len(entry.shape) == len(shape) and all(
            want == size or (want == -1 and size > 0) for size, want in zip(entry.shape, shape, strict=True)
        )
        if not fits or (dtypes and entry.dtype not in dtypes):
            raise self.broken(f"{name} is {entry.dtype} {list(entry.shape)}")

    def broken(self, why: str) -> ModelError:
        """Return the error for tensors that do not fit together."""
        return ModelError(
            f"The quantized weights of {self.folder} do not fit together ({why})", "fetch or export the model again"
        )


def scaled_weight(stored: Quantized, name: str, scale: str, block: tuple[int, int]) -> Plain:
    """Return a weight [*, out, in] with a scale [*, blocks of out, blocks of in], or with one per output or tensor."""
    shape = stored.entries[name].shape
    stored.demand(scale, stored.entries[scale].shape if scale in stored.entries else (), *_FLOATS)
    scales = stored.entries[scale].shape
    if len(shape) not in (2, 3) or not all(shape):
        raise stored.broken(f"{name} is {stored.entries[name].dtype} {list(shape)}")
    rows, columns = shape[-2:]
    block = min(block[0], rows), min(block[1], columns)
    blocks = (-(-rows // block[0]), -(-columns // block[1]))
    known = {(): (rows, columns), (1,): (rows, columns), (rows,): (1, columns), (*shape[:-1], 1): (1, columns)}
    size = block if scales == (*shape[:-2], *blocks) else known.get(scales)
    if size is None:
        raise stored.broken(f"{scale} is {list(scales)} for a weight {list(shape)}")
    return Plain(name, shape, partial(_scaled, stored, name, scale, size))


def _scaled(stored: Quantized, name: str, scale: str, size: tuple[int, int]) -> Iterator[Tensor]:
    if len(stored.entries[name].shape) == 2:
        yield _times(stored.read(name), stored.read(scale), size)
        return
    for number in range(stored.entries[name].shape[0]):
        scales = stored.part(scale, number) if len(stored.entries[scale].shape) == 3 else stored.read(scale)
        yield _times(stored.part(name, number), scales, size)


def _times(codes: Tensor, scale: Tensor, size: tuple[int, int]) -> Tensor:
    rows, columns = codes.shape
    scale = scale.float().reshape(-(-rows // size[0]), -(-columns // size[1]))
    wide = scale.repeat_interleave(size[0], 0)[:rows].repeat_interleave(size[1], 1)[:, :columns]
    return codes.float().mul_(wide)


def mxfp4_weight(stored: Quantized, name: str) -> Plain:
    """Return experts [experts, in, out] from blocks of 32 four-bit numbers along the inputs, with an exponent each."""
    blocks, scales = f"{name}_blocks", f"{name}_scales"
    stored.demand(blocks, (-1, -1, -1, 16), "U8")
    experts, rows, count, _ = stored.entries[blocks].shape
    stored.demand(scales, (experts, rows, count), "U8")
    return Plain(name, (experts, count * 32, rows), partial(_mxfp4, stored, blocks, scales))


def _mxfp4(stored: Quantized, blocks: str, scales: str) -> Iterator[Tensor]:
    table = torch.tensor([*_FP4, *(-value for value in _FP4)])
    for number in range(stored.entries[blocks].shape[0]):
        codes, exponents = stored.part(blocks, number), stored.part(scales, number).int() - _BIAS
        pairs = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)  # the lower four bits come first
        values = torch.ldexp(table[pairs.int()], exponents[..., None])
        yield values.flatten(1).T


def gptq_weight(stored: Quantized, name: str, bits: int, group: int, *, shifted: bool) -> Plain:
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


def _gptq(stored: Quantized, name: str, bits: int, group: int, *, shifted: bool) -> Iterator[Tensor]:
    codes = unpack(stored.read(f"{name}.qweight").T, bits).T  # [in, out]
    scales = stored.read(f"{name}.scales").float()
    zeros = unpack(stored.read(f"{name}.qzeros"), bits)[:, : scales.shape[1]]
    if f"{name}.g_idx" in stored.entries:
        groups = stored.read(f"{name}.g_idx").long()
        if not (int(groups.min()) >= 0 and int(groups.max()) < len(scales)):
            raise stored.broken(f"{name}.g_idx refers to groups that do not exist")
    else:
        groups = torch.arange(len(codes)) // group
    zeros = (zeros + int(shifted)) & ((1 << bits) - 1)
    yield ((codes - zeros[groups]).float() * scales[groups]).T


def awq_weight(stored: Quantized, name: str, bits: int, group: int) -> Plain:
    """Return a weight [out, in]."""
    each = 32 // bits
    stored.demand(f"{name}.qweight", (-1, -1), "I32")
    inputs, outputs = stored.entries[f"{name}.qweight"].shape
    group = min(group, inputs) if group > 0 else inputs
    stored.demand(f"{name}.scales", (-(-inputs // group), outputs * each), *_FLOATS)
    stored.demand(f"{name}.qzeros", (-(-inputs // group), outputs), "I32")
    return Plain(f"{name}.weight", (outputs * each, inputs), partial(_awq, stored, name, bits, group))


def _awq(stored: Quantized, name: str, bits: int, group: int) -> Iterator[Tensor]:
    codes, zeros = (_ordered(unpack(stored.read(f"{name}.{part}"), bits)) for part in ("qweight", "qzeros"))
    groups = torch.arange(len(codes)) // group
    yield ((codes - zeros[groups]).float() * stored.read(f"{name}.scales").float()[groups]).T


def _ordered(codes: Tensor) -> Tensor:
    """Return numbers in the order of the outputs."""
    words = codes.view(len(codes), -1, len(AWQ_ORDER))
    return words[:, :, list(AWQ_ORDER)].flatten(1)


def packed_weight(stored: Quantized, name: str, bits: int, group: int) -> Plain:
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


def _packed(stored: Quantized, name: str, bits: int, group: int, inputs: int) -> Iterator[Tensor]:
    codes = unpack(stored.read(f"{name}.weight_packed"), bits)[:, :inputs] - (1 << (bits - 1))
    scales = stored.read(f"{name}.weight_scale").float().repeat_interleave(group, 1)[:, :inputs]
    yield codes.float() * scales


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Return the unsigned numbers [rows, count * 32 / bits] of 32-bit words [rows, count], lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((packed[..., None] >> shifts) & ((1 << bits) - 1)).flatten(1)
