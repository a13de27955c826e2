"""What a step costs against what memory allows: a target of a real model's shape with random weights, by number format,
rows, batch and context.

A step must at least read its weights and its sequences' keys and values, so the bytes of those over the measured
bandwidth are its floor. Formats, sizes and the bandwidth take turns in every sweep; ratios are made within a sweep and
their medians are told. Knows models and clocks, no prompts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from codespec.bench.step_network import random_model, step_bytes
from codespec.config import EngineConfig
from codespec.models.language_model import LanguageModel
from codespec.models.loader import find_device, load_drafter
from codespec.models.memory_plan import Need, make_room
from codespec.models.shapes import SHAPES
from codespec.models.timing import Shape as Rows
from codespec.models.timing import time_forward

BUFFER = {"cpu": 512 * 2**20, "cuda": 4 * 2**30}  # bytes: several times the caches
BANDWIDTH, DRAFTER = "bandwidth", "drafter"
Key = tuple[str, Rows]  # number format, (rows, batch, context)


@dataclass(frozen=True, slots=True)
class StepBench:
    """What is measured: `widths` rows of one sequence, `batches` of one row each, and of `widths` rows each where
    `grid` asks for all of both; at every context (tokens).
    """

    config: EngineConfig
    shape: str = "qwen2.5-0.5b"
    dtypes: Sequence[str] = ("float32", "bfloat16")
    widths: Sequence[int] = (1, 2, 4, 8, 16, 32)
    batches: Sequence[int] = (1, 2, 4, 8, 16)
    contexts: Sequence[int] = (64, 1024)
    sweeps: int = 7
    grid: bool = False

    def rows(self) -> list[Rows]:
        """Every (rows, batch, context) that is timed."""
        return [
            (width * batch, batch, context)
            for context in self.contexts
            for batch in self.batches
            for width in self.widths
            if self.grid or batch == 1 or width == 1
        ]


@dataclass(slots=True)
class Sweeps:
    """What every sweep found, in its order: seconds, or bytes a second under BANDWIDTH."""

    seconds: dict[Key, list[float]] = field(default_factory=dict)
    bandwidth: list[float] = field(default_factory=list)

    def ratio(self, over: Key, under: Key) -> list[float]:
        """One cell's time over another's, sweep by sweep."""
        return [a / b for a, b in zip(self.seconds[over], self.seconds[under], strict=True)]

    def floors(self, key: Key, size: int) -> list[float]:
        """The share of the bandwidth that a cell used which had to read `size` bytes."""
        return [size / rate / taken for rate, taken in zip(self.bandwidth, self.seconds[key], strict=True)]


def run_step_bench(bench: StepBench, tell: Callable[[str], None] = print) -> dict[str, Any]:
    """Facts, one row a cell, and the ratios that are asked for."""
    config = bench.config
    torch.set_num_threads(max(1, config.threads))
    tell(f"{bench.shape}: making {' and '.join(bench.dtypes)} …")
    exact, shape = config.mode == "exact", SHAPES[bench.shape]
    drafter = load_drafter(config.drafter, config.device, config.drafter_dtype)
    models = {
        kind: random_model(shape, drafter.tokenizer, device=config.device, dtype=kind, exact=exact)
        for kind in bench.dtypes
    }
    notes: list[str] = []
    make_room(_needs(bench, models, drafter), config.graph_rows, tell, notes)
    sweeps = _sweep(bench, models, drafter, tell)
    return {**_found(bench, models, drafter, sweeps), "notes": [*notes, *_notes(models)]}


def _needs(bench: StepBench, models: Mapping[str, LanguageModel], drafter: LanguageModel) -> list[Need]:
    slots, rows = max(2, *bench.batches), max(rows for rows, _, _ in bench.rows())
    capacity, small = max(bench.contexts) + max(bench.widths), min(1024, drafter.spec.max_length)
    return [Need(drafter, 2, small, small, 1), *(Need(model, slots, capacity, rows, rows) for model in models.values())]


def _notes(models: Mapping[str, LanguageModel]) -> list[str]:
    return sorted({note for model in models.values() for note in model.spec.notes})


def _sweep(
    bench: StepBench, models: Mapping[str, LanguageModel], drafter: LanguageModel, tell: Callable[[str], None]
) -> Sweeps:
    found, source = Sweeps(), torch.ones(BUFFER[find_device(bench.config.device).type] // 4, device=drafter.device)
    cells = [(kind, rows) for rows in bench.rows() for kind in models]
    for key in cells:
        time_forward(models[key[0]], key[1])  # kernels are compiled and memory is touched before anything counts
    for sweep in range(bench.sweeps):
        tell(f"sweep {sweep + 1} of {bench.sweeps}: {len(cells)} cells")
        found.bandwidth.append(max(_bandwidth(source) for _ in range(3)))
        small = (DRAFTER, (1, 1, 64))
        found.seconds.setdefault(small, []).append(min(time_forward(drafter, small[1]) for _ in range(5)))
        for key in cells:
            found.seconds.setdefault(key, []).append(time_forward(models[key[0]], key[1]))
    return found


def _bandwidth(source: torch.Tensor) -> float:
    """Bytes a second: read by a sum on a CPU, read and written by a copy on a graphics processor."""
    on_cpu = source.device.type == "cpu"
    half = source.numel() // 2
    began = time.perf_counter()
    if on_cpu:
        source.sum()
    else:
        source[:half].copy_(source[half:])
        torch.cuda.synchronize(source.device)
    return source.numel() * source.element_size() / (time.perf_counter() - began)


def _found(
    bench: StepBench, models: Mapping[str, LanguageModel], drafter: LanguageModel, sweeps: Sweeps
) -> dict[str, Any]:
    first = next(iter(models.values()))
    rows = [_row(bench, models[kind], (kind, shape), sweeps) for kind in models for shape in bench.rows()]
    return {
        "shape": bench.shape,
        "device": torch.cuda.get_device_name(first.device) if first.device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "mode": bench.config.mode,
        "sweeps": bench.sweeps,
        "parameters": first.spec.parameters,
        "graph_rows": bench.config.graph_rows,
        "bandwidth_gb": round(median(sweeps.bandwidth) / 1e9, 2),
        "drafter": {
            "name": drafter.spec.name.rstrip("/").rpartition("/")[2],
            "ms": _ms(sweeps.seconds[DRAFTER, (1, 1, 64)]),
        },
        "rows": rows,
    }


def _row(bench: StepBench, model: LanguageModel, key: Key, sweeps: Sweeps) -> dict[str, Any]:
    kind, (rows, batch, context) = key
    size = step_bytes(model, SHAPES[bench.shape], batch, context)
    over_one = sweeps.ratio(key, (kind, (1, 1, context))) if (kind, (1, 1, context)) in sweeps.seconds else [0.0]
    return {
        "dtype": kind,
        "width": rows // batch,
        "batch": batch,
        "context": context,
        "ms": _ms(sweeps.seconds[key]),
        "over_one": round(median(over_one), 3),
        "of_bandwidth": round(median(sweeps.floors(key, size)), 3),
    }


def _ms(seconds: Sequence[float]) -> float:
    return round(1000 * median(seconds), 3)
