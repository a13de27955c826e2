"""`codespec bench step`: the cost of a step relative to the memory bandwidth, and in `exact` relative to `fast` mode.

The model is a local target or random weights of a real model's shape. Cells vary number format, rows, batch and
context, and a prompt is timed too.

A step must read its weights and its sequences' keys and values, so their bytes over the measured bandwidth are its
lower bound. Formats, modes, sizes and the bandwidth take turns in every sweep; ratios are taken within a sweep, and
their medians are reported. On a CPU the same model runs in both modes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch

from codespec.backends.language_model import LanguageModel, Rows
from codespec.backends.loader import load_model
from codespec.backends.memory_plan import Need, make_room
from codespec.backends.torch.loader import find_device
from codespec.backends.torch.model import TorchModel
from codespec.startup.batch_invariance import CHUNK, LENGTH
from codespec.startup.timing import ForwardShape as Cell
from codespec.startup.timing import time_forward, timed
from codespec.store.machine import processor
from codespec_lab.bench.harness import Figures, Scenario, in_turn
from codespec_lab.bench.report import table
from codespec_lab.bench.settings import StepBench
from codespec_lab.bench.shapes import OWN, SHAPES, ModelSizes
from codespec_lab.bench.step_models import find_modes, random_model, shape_of, step_bytes

BUFFER = {"cpu": 512 * 2**20, "cuda": 4 * 2**30}  # bytes: several times the caches
MODES = ("exact", "fast")
TRIED_SLOTS = 3  # slots for the check of exact mode


class Key(NamedTuple):
    """A cell: number format, mode, (rows, batch, context), and for a prompt the rows per forward."""

    kind: str
    mode: str
    rows: Cell
    chunk: int = 0


DRAFTER = Key("drafter", "fast", (1, 1, 64))


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
    torch.set_num_threads(max(1, bench.config.threads))
    run = StepRun(bench, tell)
    return {**run.figures(run.sweep()), "notes": run.notes}


class StepRun:
    """The models in every number format, with the modes to measure."""

    def __init__(self, bench: StepBench, tell: Callable[[str], None]) -> None:
        self.bench, self.tell, config = bench, tell, bench.config
        self.on_cpu = find_device(config.device).type == "cpu"  # both modes are measured there
        chunk = config.prefill_chunk or CHUNK  # the scheduler's, in rows
        self.chunks = (
            sorted({bench.prompt, min(bench.prompt, chunk)}, reverse=True) if bench.prompt and self.on_cpu else []
        )
        self.random = bench.shape != OWN
        self.shape = SHAPES[bench.shape] if self.random else shape_of(config.target)
        tell(f"{self.shape.name}: {'making' if self.random else 'loading'} {' and '.join(bench.dtypes)} …")
        self.drafter = load_model(config.drafter, device=config.device, dtype=config.drafter_dtype, exact=False)
        self.models = {kind: self._model(kind) for kind in bench.dtypes}
        self.notes: list[str] = []
        make_room(self._needs(), config.graph_rows, tell, self.notes)
        tell("checking exact mode …" if self.on_cpu else "measuring …")
        found = {kind: find_modes(model, config.mode, chunk) for kind, model in self.models.items()}
        self.modes = {kind: modes for kind, (modes, _) in found.items()}
        self.notes += sorted({note for model in self.models.values() for note in model.spec.notes})
        self.notes += [
            f"{kind}: exact mode does not hold here ({variance}), so only fast is measured"
            for kind, (_, variance) in found.items()
            if variance
        ]

    @property
    def rows(self) -> list[Cell]:
        """Return every (rows, batch, context) to time."""
        bench = self.bench
        return [
            (width * batch, batch, context)
            for context in bench.contexts
            for batch in bench.batches
            for width in bench.widths
            if bench.grid or batch == 1 or width == 1
        ]

    def sweep(self) -> Sweeps:
        """Measure all cells, sweep by sweep."""
        found = Sweeps()
        source = torch.ones(BUFFER["cpu" if self.on_cpu else "cuda"] // 4, device=self.drafter.device)
        for key in self._cells(0):
            self._take(key)  # compiles kernels and touches memory before the measured sweeps
        for sweep in range(self.bench.sweeps):
            cells = self._cells(sweep)
            self.tell(f"sweep {sweep + 1} of {self.bench.sweeps}: {len(cells)} cells")
            found.bandwidth.append(max(_bandwidth(source) for _ in range(3)))
            drafter = min(time_forward(self.drafter, DRAFTER.rows) for _ in range(5))
            found.seconds.setdefault(DRAFTER, []).append(drafter)
            for key in cells:
                found.seconds.setdefault(key, []).append(self._take(key))
        return found

    def figures(self, sweeps: Sweeps) -> dict[str, Any]:
        """Return facts and rows."""
        first = next(iter(self.models.values()))
        config, prompt = self.bench.config, (self.bench.prompt, 1, 0)
        modes = {kind: config.mode if config.mode in modes else modes[0] for kind, modes in self.modes.items()}
        keys = [Key(kind, modes[kind], size) for kind in self.models for size in self.rows]
        prompts = [Key(kind, modes[kind], prompt, chunk) for kind in self.models for chunk in self.chunks]
        return {
            "shape": self.shape.name,
            "weights": "random" if self.random else "its own",
            "device": "cpu" if self.on_cpu else torch.cuda.get_device_name(first.device),
            "processor": processor().label,
            "threads": torch.get_num_threads(),
            "mode": config.mode,
            "sweeps": self.bench.sweeps,
            "parameters": first.spec.parameters,
            "graph_rows": config.graph_rows,
            "bandwidth_gb": round(median(sweeps.bandwidth) / 1e9, 2),
            "drafter": {
                "name": self.drafter.spec.name.rstrip("/").rpartition("/")[2],
                "ms": _ms(sweeps.seconds[DRAFTER]),
            },
            "rows": [_row(self.shape, self.models[key.kind], key, sweeps) for key in keys],
            "prompts": [_prompt_row(key, sweeps) for key in prompts],
        }

    def _model(self, kind: str) -> LanguageModel:
        config, device = self.bench.config, self.bench.config.device
        exact = self.on_cpu or config.mode == "exact"
        if self.random:
            return random_model(self.shape, self.drafter.tokenizer, device=device, dtype=kind, exact=exact)
        return load_model(config.target, device=device, dtype=kind, exact=exact)

    def _needs(self) -> list[Need]:
        bench, drafter = self.bench, self.drafter
        slots, rows = max(2, *bench.batches), max(rows for rows, _, _ in self.rows)
        capacity, small = max(bench.contexts) + max(bench.widths), min(1024, drafter.spec.max_length)
        if self.on_cpu:
            slots, capacity = max(TRIED_SLOTS, slots), max(LENGTH, capacity, bench.prompt)
        models = (Need(model, slots, capacity, rows, rows) for model in self.models.values())
        return [Need(drafter, 2, small, small, 1), *models]

    def _cells(self, sweep: int) -> list[Key]:
        """Return the cells of a sweep in their order; the modes take turns."""
        sizes = [(rows, 0) for rows in self.rows] + [((self.bench.prompt, 1, 0), chunk) for chunk in self.chunks]
        return [
            Key(kind, mode, rows, chunk)
            for rows, chunk in sizes
            for mode in in_turn(MODES, sweep)
            for kind, modes in self.modes.items()
            if mode in modes
        ]

    def _take(self, key: Key) -> float:
        """Return the seconds of a cell."""
        model = self.models[key.kind]
        if self.on_cpu and isinstance(model, TorchModel):
            model.set_exact(key.mode == "exact")
        return time_prompt(model, key.rows[0], key.chunk) if key.chunk else time_forward(model, key.rows)


def time_prompt(model: LanguageModel, length: int, chunk: int) -> float:
    """Return the seconds of a `length`-token prompt in slot 0, in chunks of `chunk`, until the last row's logits."""
    model.admit(0, length)
    ends = [min(start + chunk, length) for start in range(0, length, chunk)]
    parts = [Rows(0, start, [1] * (end - start), int(end == length)) for start, end in pairwise([0, *ends])]
    return timed(lambda: [model.step([part]) for part in parts], model.wait)


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


def _row(shape: ModelSizes, model: LanguageModel, key: Key, sweeps: Sweeps) -> dict[str, Any]:
    rows, batch, context = key.rows
    size = step_bytes(model, shape, batch, context)
    single = key._replace(rows=(1, 1, context))
    over_one = sweeps.ratio(key, single) if single in sweeps.seconds else [0.0]
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


def report(found: Figures) -> list[str]:
    """Return the rows as lines, the drafter's step last."""
    compared = any("over_fast" in row for row in found["rows"])
    head = ["dtype", "context", "batch", "width", "ms", "of one row", "of bandwidth"]
    rows = [[*head, "exact over fast"] if compared else head]
    for row in found["rows"]:
        sizes = [row["dtype"], row["context"], row["batch"], row["width"]]
        figures = [f"{row['ms']:.2f}", f"{row['over_one']:.2f}", f"{row['of_bandwidth']:.0%}"]
        rows.append([*sizes, *figures, *([_over_fast_text(row)] if compared else [])])
    return [
        f"{found['shape']}, {found['weights']} weights, {found['device']}, {found['threads']} thread(s), "
        f"{found['mode']}; measured bandwidth {found['bandwidth_gb']} GB/s",
        found["processor"],
        *table(rows),
        *map(_prompt, found["prompts"]),
        f"a step of the drafter ({found['drafter']['name']}): {found['drafter']['ms']} ms",
        *found["notes"],
    ]


def _prompt(row: Mapping[str, Any]) -> str:
    how = "in one forward" if row["chunk"] == row["rows"] else f"in chunks of {row['chunk']}"
    over = f", exact over fast {_over_fast_text(row)}" if "over_fast" in row else ""
    return f"a prompt of {row['rows']} tokens {how}, {row['dtype']}: {row['ms']:.0f} ms{over}"


def _over_fast_text(row: Mapping[str, Any]) -> str:
    """Return the median of the sweeps' ratios with their range."""
    if "over_fast" not in row:
        return "-"
    low, high = row["over_fast_range"]
    return f"{row['over_fast']:.2f} ({low:.2f}–{high:.2f})"


SCENARIO = Scenario(run_step_bench, report)
