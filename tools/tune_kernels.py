"""Time candidate plans for the row-invariant kernels on a GPU, and print `TUNED` of `torch.cuda.launch`.

For every matrix of the shapes in `codespec_lab.bench.shapes`, this compares ways to split the sum and tile sizes by the
time of one, sixteen and thirty-two rows, next to the library's product. It then times the attention kernel's tile
sizes. The weights exceed the cache, and launches are replayed as a graph. The plans found here are copied into the
source. Nothing is chosen by time at run time, because the bits of a result would then differ between runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from codespec_lab.bench.shapes import SHAPES
from torch import Tensor

from codespec.backends.torch.cuda.launch import (
    ENOUGH_PROGRAMS,
    SPAN_UNIT,
    DeviceRows,
    ProductPlan,
    Scoring,
    plan_of,
    tile_positions,
)
from codespec.backends.torch.linear import multiply
from codespec.store.machine import processor

DTYPE = torch.bfloat16
BEYOND_CACHE = 256 << 20  # bytes of weights read by one timing, more than the cache holds
SHARED_MEMORY = 200 << 10  # maximum bytes of a program's stages
DEPTHS = ((128, 4), (128, 6), (256, 4))  # (depth, stages)
COUNTS = (1, 8, 16, 17, 32, 64, 128, 512)


@dataclass(frozen=True, slots=True)
class Finding:
    """Best plan of a matrix, and microseconds by row count: ours, the library's, and the bandwidth's lower bound."""

    columns: int
    depth: int
    plan: ProductPlan
    ours: dict[int, float]
    library: dict[int, float]
    floor: float


def matrices() -> list[tuple[int, int]]:
    """Return [out, in] of every fused product of the known shapes, each once."""
    found: dict[tuple[int, int], None] = {}
    for shape in SHAPES.values():
        found[shape.query + 2 * shape.keys, shape.hidden] = None
        found[shape.hidden, shape.query] = None
        found[2 * shape.inner, shape.hidden] = None
        found[shape.hidden, shape.inner] = None
        found[shape.vocabulary, shape.hidden] = None
    return list(found)


def candidates(columns: int, depth: int) -> Iterator[ProductPlan]:
    """Yield plans that start enough programs but not far too many; the default plan is always included."""
    yield plan_of(columns, depth, DTYPE)
    for width in (16, 32, 64):
        for splits in (1, 2, 4, 8):
            programs = -(-columns // width) * splits
            if splits > 1 and (programs > 6 * ENOUGH_PROGRAMS or depth < 2 * splits * SPAN_UNIT):
                continue
            if programs < ENOUGH_PROGRAMS // 2:
                continue
            for deep, stages in DEPTHS:
                if (16 + width) * deep * DTYPE.itemsize * stages <= SHARED_MEMORY:
                    yield ProductPlan(splits, width, deep, 4, stages)


def replayed(launches: Sequence[Callable[[], object]], repeats: int = 7) -> float:
    """Return the median microseconds of one launch when all launches are captured and replayed."""
    for launch in launches[:2]:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    times: list[float] = []
    for _ in range(repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended) * 1000 / len(launches))
    return sorted(times)[repeats // 2]


def bandwidth() -> float:
    """Return the bytes per microsecond that a large copy moves, read and written."""
    source, target = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_() for _ in range(2))
    return 2 * source.numel() / replayed([lambda: target.copy_(source)] * 3)


def tune(columns: int, depth: int, rate: float) -> Finding:
    """Return the plan with the least time for one, sixteen and thirty-two rows together."""
    copies = max(2, -(-BEYOND_CACHE // (columns * depth * DTYPE.itemsize)))
    weights = [torch.randn(columns, depth, device="cuda").to(DTYPE) for _ in range(copies)]
    rows = {count: torch.randn(count, depth, device="cuda").to(DTYPE) for count in COUNTS}

    def timed(plan: ProductPlan, count: int) -> float:
        return replayed([lambda w=w: multiply(rows[count], w, None, plan) for w in weights])  # type: ignore[misc]

    def library(count: int) -> float:
        product = torch.nn.functional.linear
        return replayed([lambda w=w: product(rows[count], w) for w in weights])  # type: ignore[misc]

    plan = min(
        dict.fromkeys(candidates(columns, depth)), key=lambda plan: sum(timed(plan, count) for count in (1, 16, 32))
    )
    ours, theirs = ({count: round(of(count), 2) for count in COUNTS} for of in (lambda n: timed(plan, n), library))
    return Finding(columns, depth, plan, ours, theirs, round(columns * depth * DTYPE.itemsize / rate, 2))


def always(answer: Any) -> Callable[..., Any]:
    """Return a function that ignores its arguments and returns `answer`."""
    return lambda *_: answer


def walks() -> list[dict[str, Any]]:
    """Return the microseconds of attention in the 7B shape, for one and nine rows, by split, key block and warps."""
    from codespec.backends.torch.cuda import attention_kernels

    found = []
    for split in (256, 512):
        for block, warps, stages in ((32, 4, 4), (64, 4, 3), (64, 2, 3), (128, 4, 2), (128, 8, 2)):
            walk = attention_kernels.Walk(block, warps, stages)
            attention_kernels.SPLIT = split
            attention_kernels.walk_of = always(walk)
            taken = {f"{count} of {reach}": _attention(count, reach) for count in (1, 9) for reach in (512, 2048, 8192)}
            found.append({"split": split, **asdict(walk), "microseconds": taken})
            print(f"attention split {split:4} keys {block:4} warps {warps} stages {stages}: {taken}", flush=True)
    return found


def _attention(count: int, reach: int, groups: int = 7, kv_heads: int = 4, size: int = 128) -> float:
    from codespec.backends.torch.cuda.attention_kernels import attend_tiles

    layers = max(2, BEYOND_CACHE // (2 * kv_heads * reach * size * DTYPE.itemsize))
    caches = torch.randn(layers, 2, 2, kv_heads, reach, size, device="cuda", dtype=DTYPE)
    query = torch.randn(count, groups * kv_heads, size, device="cuda", dtype=DTYPE)
    step, first = tile_positions(groups), reach - count
    tiles = [(0, first + begin, begin, min(step, count - begin)) for begin in range(0, count, step)]
    zeros = torch.zeros(count, dtype=torch.int64, device="cuda")
    positions = torch.arange(first, reach, device="cuda")
    rows = DeviceRows(zeros, positions, zeros, torch.tensor(tiles, dtype=torch.int32, device="cuda"), reach)

    def launch(cache: Tensor) -> Callable[[], object]:
        return lambda: attend_tiles(query, cache[0], cache[1], rows, Scoring(size**-0.5))

    return round(replayed([launch(cache) for cache in caches]), 2)


def show(finding: Finding) -> None:
    """Print the table line and the times of one matrix."""
    plan = finding.plan
    line = f"({finding.columns}, {finding.depth}, {DTYPE.itemsize}): "
    line += f"Plan({plan.splits}, {plan.columns}, {plan.depth}, {plan.warps}, {plan.stages}),"
    costs = ", ".join(f"{n}: {finding.ours[n]} ({finding.library[n]})" for n in COUNTS)
    print(f"    {line}  # floor {finding.floor} µs; ours (library) {costs}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Time the matrices that fit into the minutes, print the table and write it as JSON."""
    parser = argparse.ArgumentParser(prog="tools.tune_kernels", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the findings to this file")
    parser.add_argument("--minutes", type=float, default=8.0, metavar="N", help="start no matrix after this time")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, list the candidates only")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {"processor": processor().label, "matrices": [], "attention": []}
    if options.rehearse:
        result["candidates"] = {f"{c}x{d}": len(set(candidates(c, d))) for c, d in matrices()}
        print(result["candidates"])
    elif not torch.cuda.is_available():
        print("torch finds no GPU: choose a Python whose torch does, or use --rehearse.")
        return 1
    else:
        _time_all(result, time.monotonic() + 60 * options.minutes)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def _time_all(result: dict[str, Any], end: float) -> None:
    rate = bandwidth()
    result["gigabytes a second"] = round(rate / 1000, 1)
    print(f"a copy moves {rate / 1000:.0f} GB/s; microseconds a product:", flush=True)
    result["attention"] = walks()
    for columns, depth in matrices():
        if time.monotonic() < end:
            finding = tune(columns, depth, rate)
            show(finding)
            result["matrices"].append(asdict(finding))


if __name__ == "__main__":
    sys.exit(main())
