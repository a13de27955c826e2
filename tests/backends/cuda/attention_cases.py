"""Random cases of slot attention, and a naive reference. Depends only on torch, so the interpreter's and GPU tests
share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from codespec.backends.torch.cuda.launch import DeviceRows, Scoring, tile_positions

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@dataclass(frozen=True)
class Shape:
    """Attention parameters of a model."""

    groups: int = 2
    kv_heads: int = 2
    size: int = 64
    value_size: int = 64
    window: int = 0
    softcap: float | None = None
    sinks: bool = False
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Stretch:
    """`count` rows of `slot` from position `first` on."""

    slot: int
    first: int
    count: int


@dataclass
class Case:
    """Query rows, a filled cache whose last slot is scratch, and the rows of the step."""

    shape: Shape
    stretches: Sequence[Stretch]
    query: Tensor
    keys: Tensor
    values: Tensor
    sinks: Tensor | None
    rows: DeviceRows

    @property
    def arguments(self) -> tuple[object, ...]:
        """Arguments of slot_attention."""
        scoring = Scoring(self.shape.size**-0.5, self.shape.window, self.shape.softcap, self.sinks)
        return self.query, self.keys, self.values, self.rows, scoring


def draw_case(
    shape: Shape, stretches: Sequence[Stretch], capacity: int, padding: int = 0, device: str = "cpu", seed: int = 0
) -> Case:
    """Return a random case whose cache is filled beyond the rows' positions, so that reading too far is noticed."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).to(device, shape.dtype)

    slots = max(stretch.slot for stretch in stretches) + 2
    count = sum(stretch.count for stretch in stretches)
    heads = shape.kv_heads * shape.groups
    return Case(
        shape,
        stretches,
        draw(count + padding, heads, shape.size) * 3,
        draw(slots, shape.kv_heads, capacity, shape.size),
        draw(slots, shape.kv_heads, capacity, shape.value_size),
        draw(heads) if shape.sinks else None,
        lay_out(stretches, tile_positions(shape.groups), padding, slots - 1, capacity, device),
    )


def lay_out(
    stretches: Sequence[Stretch], size: int, padding: int, scratch: int, reach: int, device: str = "cpu"
) -> DeviceRows:
    """Return the rows of these stretches, then `padding` padding rows and as many unused tiles."""
    positions, slots, tiles = [], [], []
    for stretch in stretches:
        for offset in range(0, stretch.count, size):
            rows = min(size, stretch.count - offset)
            tiles.append((stretch.slot, stretch.first + offset, len(positions) + offset, rows))
        positions += range(stretch.first, stretch.first + stretch.count)
        slots += [stretch.slot] * stretch.count
    count = len(positions) + padding
    return DeviceRows(
        torch.zeros(count, dtype=torch.int64, device=device),
        torch.tensor(positions + [0] * padding, device=device),
        torch.tensor(slots + [scratch] * padding, device=device),
        torch.tensor(tiles + [(0, 0, 0, 0)] * padding, dtype=torch.int32, device=device),
        reach,
    )


def part(case: Case, index: int, begin: int, count: int, reach: int | None = None, padding: int = 0) -> Case:
    """Return a case of `count` rows of one stretch from row `begin` on, with another bound and padding."""
    whole = case.stretches[index]
    flat = sum(stretch.count for stretch in case.stretches[:index]) + begin
    stretches = [Stretch(whole.slot, whole.first + begin, count)]
    query = torch.cat([case.query[flat : flat + count], case.query[:padding]])
    scratch, device = case.keys.shape[0] - 1, str(case.query.device)
    rows = lay_out(stretches, tile_positions(case.shape.groups), padding, scratch, reach or case.keys.shape[2], device)
    return replace(case, stretches=stretches, query=query, rows=rows)


def naive(case: Case) -> Tensor:
    """Compute attention row by row and head by head in float64."""
    shape = case.shape
    count = case.query.shape[0]
    out = torch.zeros(count, case.query.shape[1], shape.value_size, dtype=torch.float64, device=case.query.device)
    flat = 0
    for stretch in case.stretches:
        for position in range(stretch.first, stretch.first + stretch.count):
            for head in range(case.query.shape[1]):
                out[flat, head] = _one(case, flat, head, stretch.slot, position)
            flat += 1
    return out


def _one(case: Case, flat: int, head: int, slot: int, position: int) -> Tensor:
    shape = case.shape
    seen = slice(max(0, position - shape.window + 1) if shape.window else 0, position + 1)
    keys = case.keys[slot, head // shape.groups, seen].double()
    values = case.values[slot, head // shape.groups, seen].double()
    scores = keys @ case.query[flat, head].double() * shape.size**-0.5
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    if case.sinks is not None:
        scores = torch.cat([scores, case.sinks[head : head + 1].double()])
    return torch.softmax(scores, 0)[: len(values)] @ values


def error(got: Tensor, wanted: Tensor) -> float:
    """Return the largest difference relative to the largest value; NaN if either has one."""
    return float((got.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp(min=1e-6))
