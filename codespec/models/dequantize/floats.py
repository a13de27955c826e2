"""Weights of 8 and 4 bits with scales: fp8 and int8 (one scale a tensor, an output or a block), and mxfp4."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from codespec.models.dequantize.stored import Plain, Stored

FLOAT8 = ("F8_E4M3", "F8_E5M2")
_FLOATS = ("F32", "BF16", "F16")
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # OCP microscaling formats 1.0, E2M1
_BIAS = 127  # of a scale's exponent, E8M0


def scaled_weight(stored: Stored, name: str, scale: str, block: tuple[int, int]) -> Plain:
    """Return a weight [*, out, in] with a scale [*, blocks of out, blocks of in], or one an output or a tensor."""
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


def _scaled(stored: Stored, name: str, scale: str, size: tuple[int, int]) -> Iterator[Tensor]:
    if len(stored.entries[name].shape) == 2:
        yield _times(stored.read(name), stored.read(scale), size)
        return
    for number in range(stored.entries[name].shape[0]):
        one = stored.part(scale, number) if len(stored.entries[scale].shape) == 3 else stored.read(scale)
        yield _times(stored.part(name, number), one, size)


def _times(codes: Tensor, scale: Tensor, size: tuple[int, int]) -> Tensor:
    rows, columns = codes.shape
    scale = scale.float().reshape(-(-rows // size[0]), -(-columns // size[1]))
    wide = scale.repeat_interleave(size[0], 0)[:rows].repeat_interleave(size[1], 1)[:, :columns]
    return codes.float().mul_(wide)


def mxfp4_weight(stored: Stored, name: str) -> Plain:
    """Return experts [experts, in, out] from blocks of 32 four-bit numbers along the inputs, with an exponent each."""
    blocks, scales = f"{name}_blocks", f"{name}_scales"
    stored.demand(blocks, (-1, -1, -1, 16), "U8")
    experts, rows, count, _ = stored.entries[blocks].shape
    stored.demand(scales, (experts, rows, count), "U8")
    return Plain(name, (experts, count * 32, rows), partial(_mxfp4, stored, blocks, scales))


def _mxfp4(stored: Stored, blocks: str, scales: str) -> Iterator[Tensor]:
    table = torch.tensor([*_FP4, *(-value for value in _FP4)])
    for number in range(stored.entries[blocks].shape[0]):
        codes, exponents = stored.part(blocks, number), stored.part(scales, number).int() - _BIAS
        pairs = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)  # the lower four bits come first
        values = torch.ldexp(table[pairs.int()], exponents[..., None])
        yield values.flatten(1).T
