"""`codespec bench step`: the cost of a step relative to the memory bandwidth, and in `exact` relative to `fast` mode.

The model is a local target or random weights of a real model's shape. Cells vary number format, rows, batch and
context, and a prompt is timed too.

A step must read its weights and its sequences' keys and values, so their bytes over the measured bandwidth are its
lower bound. Formats, modes, sizes and the bandwidth take turns in every sweep; ratios are taken within a sweep, and
their medians are reported. On a CPU both modes are call shapes of the same model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import torch

from codespec.config import EngineConfig
from codespec.models.language_model import LanguageModel
from codespec.models.loader import find_device, load_drafter, load_model
from codespec.models.memory_plan import Need, make_room
from codespec.models.processor import processor
from codespec.models.shapes import SHAPES, Shape
from codespec.startup.batch_invariance import CHUNK, LENGTH
from codespec.startup.timing import Shape as Rows
from codespec.startup.timing import time_forward, time_prompt
from codespec_lab.bench.step.models import MeasuredCalls, find_measured_calls, random_model, shape_of, step_bytes

BUFFER = {"cpu": 512 * 2**20, "cuda": 4 * 2**30}  # bytes: several times the caches
MODES = ("exact", "fast")
TRIED_SLOTS = 3  # slots for the search for an exact call shape


class Key(NamedTuple):
    """A cell: number format, mode, (rows, batch, context), and for a prompt the rows per forward."""

    kind: str
    mode: str
    rows: Rows
    chunk: int = 0


DRAFTER = Key("drafter", "fast", (1, 1, 64))


@dataclass(frozen=True, slots=True)
class StepBench:
    """The settings: `widths` rows of one sequence, `batches` of sequences with one row each, or with `grid` all pairs
    of both; each at every context (tokens). A CPU also prefills a prompt of `prompt` tokens (0: none). Without a
    `shape`, the configured target is measured.
    """

    config: EngineConfig
    shape: str = ""
    dtypes: Sequence[str] = ("float32", "bfloat16")
    widths: Sequence[int] = (1, 2, 4, 8, 16, 32)
    batches: Sequence[int] = (1, 2, 4, 8, 16)
    contexts: Sequence[int] = (64, 1024)
    sweeps: int = 7
    grid: bool = False
    prompt: int = 512

    @property
    def on_cpu(self) -> bool:
        """Return whether the device is a CPU, on which both modes are measured."""
        return find_device(self.config.device).type == "cpu"

    @property
    def chunk(self) -> int:
        """Return the scheduler's prefill chunk in rows."""
        return self.config.prefill_chunk or CHUNK

    def rows(self) -> list[Rows]:
        """Return every (rows, batch, context) to time."""
        return [
            (width * batch, batch, context)
            for context in self.contexts
            for batch in self.batches
            for width in self.widths
            if self.grid or batch == 1 or width == 1
        ]

    def chunks(self) -> list[int]:
        """Return the numbers of prompt rows per forward to time: all, and the scheduler's chunk."""
        return sorted({self.prompt, min(self.prompt, self.chunk)}, reverse=True) if self.prompt and self.on_cpu else []


@dataclass(slots=True)
class Sweeps:
    """Measurements sweep by sweep: seconds of the cells, and the bandwidth in bytes per second."""

    seconds: dict[Key, list[float]] = field(default_factory=dict)
    bandwidth: list[float] = field(default_factory=list)

    def ratio(self, over: Key, under: Key) -> list[float]:
        """Return one cell's time over another's, sweep by sweep."""
        return [a / b for a, b in zip(self.seconds[over], self.seconds[under], strict=True)]

    def floors(self, key: Key, size: int) -> list[float]:
        """Return the share of the bandwidth that a cell used if it had to read `size` bytes, sweep by sweep."""
        return [size / rate / taken for rate, taken in zip(self.bandwidth, self.seconds[key], strict=True)]


def run_step_bench(bench: StepBench, tell: Callable[[str], None] = print) -> dict[str, Any]:
    """Return facts, and a row for each cell with its ratios, as plain JSON values. Call `tell` with each phase."""
    config = bench.config
    torch.set_num_threads(max(1, config.threads))
    shape = SHAPES[bench.shape] if bench.shape else shape_of(config.target, bench.dtypes[0])
    tell(f"{shape.name}: {'making' if bench.shape else 'loading'} {' and '.join(bench.dtypes)} …")
    exact = bench.on_cpu or config.mode == "exact"
    drafter = load_drafter(config.drafter, config.device, config.drafter_dtype)
    models = {
        kind: random_model(shape, drafter.tokenizer, device=config.device, dtype=kind, exact=exact)
        if bench.shape
        else load_model(config.target, device=config.device, dtype=kind, exact=exact)
        for kind in bench.dtypes
    }
    notes: list[str] = []
    make_room(_needs(bench, models, drafter), config.graph_rows, tell, notes)
    tell("looking for the exact shape of call …" if bench.on_cpu else "measuring …")
    calls = {kind: find_measured_calls(model, config.mode, bench.chunk) for kind, model in models.items()}
    sweeps = _sweep(bench, models, calls, drafter, tell)
    return {**_found(bench, shape, models, calls, drafter, sweeps), "notes": [*notes, *_notes(models, calls)]}


def _needs(bench: StepBench, models: Mapping[str, LanguageModel], drafter: LanguageModel) -> list[Need]:
    slots, rows = max(2, *bench.batches), max(rows for rows, _, _ in bench.rows())
    capacity, small = max(bench.contexts) + max(bench.widths), min(1024, drafter.spec.max_length)
    if bench.on_cpu:
        slots, capacity = max(TRIED_SLOTS, slots), max(LENGTH, capacity, bench.prompt)
    return [Need(drafter, 2, small, small, 1), *(Need(model, slots, capacity, rows, rows) for model in models.values())]


def _notes(models: Mapping[str, LanguageModel], calls: Mapping[str, MeasuredCalls]) -> list[str]:
    varying = [
        f"{kind}: exact mode does not hold here ({found.variance}), so only fast is measured"
        for kind, found in calls.items()
        if found.variance
    ]
    return [*sorted({note for model in models.values() for note in model.spec.notes}), *varying]


def _cells(bench: StepBench, calls: Mapping[str, MeasuredCalls], sweep: int) -> list[Key]:
    """Return the cells of a sweep in their order; the first mode alternates from sweep to sweep."""
    sizes = [(rows, 0) for rows in bench.rows()] + [((bench.prompt, 1, 0), chunk) for chunk in bench.chunks()]
    modes = MODES[:: -1 if sweep % 2 else 1]
    return [
        Key(kind, mode, rows, chunk)
        for rows, chunk in sizes
        for mode in modes
        for kind, found in calls.items()
        if mode in found.shapes
    ]


def _sweep(
    bench: StepBench,
    models: Mapping[str, LanguageModel],
    calls: Mapping[str, MeasuredCalls],
    drafter: LanguageModel,
    tell: Callable[[str], None],
) -> Sweeps:
    found, source = Sweeps(), torch.ones(BUFFER[find_device(bench.config.device).type] // 4, device=drafter.device)

    def take(key: Key) -> float:
        model = models[key.kind]
        if bench.on_cpu:
            model.use(calls[key.kind].shapes[key.mode])
        return time_prompt(model, key.rows[0], key.chunk) if key.chunk else time_forward(model, key.rows)

    for key in _cells(bench, calls, 0):
        take(key)  # compiles kernels and touches memory before the measured sweeps
    for sweep in range(bench.sweeps):
        cells = _cells(bench, calls, sweep)
        tell(f"sweep {sweep + 1} of {bench.sweeps}: {len(cells)} cells")
        found.bandwidth.append(max(_bandwidth(source) for _ in range(3)))
        found.seconds.setdefault(DRAFTER, []).append(min(time_forward(drafter, DRAFTER.rows) for _ in range(5)))
        for key in cells:
            found.seconds.setdefault(key, []).append(take(key))
    return found


def _bandwidth(source: torch.Tensor) -> float:
    """Return bytes per second: reading (a sum) on a CPU, reading and writing (a copy) on a GPU."""
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
    bench: StepBench,
    shape: Shape,
    models: Mapping[str, LanguageModel],
    calls: Mapping[str, MeasuredCalls],
    drafter: LanguageModel,
    sweeps: Sweeps,
) -> dict[str, Any]:
    first = next(iter(models.values()))
    modes = {kind: found.mode(bench.config.mode) for kind, found in calls.items()}
    rows = [_row(shape, models[kind], Key(kind, modes[kind], size), sweeps) for kind in models for size in bench.rows()]
    prompts = [
        _prompt_row(Key(kind, modes[kind], (bench.prompt, 1, 0), chunk), sweeps)
        for kind in models
        for chunk in bench.chunks()
    ]
    return {
        "shape": shape.name,
        "weights": "random" if bench.shape else "its own",
        "device": torch.cuda.get_device_name(first.device) if first.device.type == "cuda" else "cpu",
        "processor": processor().label,
        "threads": torch.get_num_threads(),
        "mode": bench.config.mode,
        "calls": {kind: found.as_dict() for kind, found in calls.items()},
        "sweeps": bench.sweeps,
        "parameters": first.spec.parameters,
        "graph_rows": bench.config.graph_rows,
        "bandwidth_gb": round(median(sweeps.bandwidth) / 1e9, 2),
        "drafter": {
            "name": drafter.spec.name.rstrip("/").rpartition("/")[2],
            "ms": _ms(sweeps.seconds[DRAFTER]),
        },
        "rows": rows,
        "prompts": prompts,
    }


def _row(shape: Shape, model: LanguageModel, key: Key, sweeps: Sweeps) -> dict[str, Any]:
    rows, batch, context = key.rows
    size = step_bytes(model, shape, batch, context)
    one = key._replace(rows=(1, 1, context))
    over_one = sweeps.ratio(key, one) if one in sweeps.seconds else [0.0]
    return {
        "dtype": key.kind,
        "width": rows // batch,
        "batch": batch,
        "context": context,
        "ms": _ms(sweeps.seconds[key]),
        "over_one": round(median(over_one), 3),
        "of_bandwidth": round(median(sweeps.floors(key, size)), 3),
        **_over_fast(key, sweeps),
    }


def _prompt_row(key: Key, sweeps: Sweeps) -> dict[str, Any]:
    sizes = {"dtype": key.kind, "rows": key.rows[0], "chunk": key.chunk}
    return {**sizes, "ms": _ms(sweeps.seconds[key]), **_over_fast(key, sweeps)}


def _over_fast(key: Key, sweeps: Sweeps) -> dict[str, Any]:
    """Return the cost of exact over fast, median and range over the sweeps; {} if only one of them was measured."""
    exact, fast = (key._replace(mode=mode) for mode in MODES)
    if not {exact, fast} <= sweeps.seconds.keys():
        return {}
    ratios = sweeps.ratio(exact, fast)
    return {
        "over_fast": round(median(ratios), 3),
        "over_fast_range": [round(min(ratios), 3), round(max(ratios), 3)],
    }


def _ms(seconds: Sequence[float]) -> float:
    return round(1000 * median(seconds), 3)
