"""Time the models' forward passes on this machine, and build and save the cost table. All cache slots must be free.

Each shape is timed several times, in rotation, so that a busy moment affects all shapes alike. The median is used,
because the minimum would reflect the machine's best moments, when additional rows are unusually cheap.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median, median_low
from typing import TYPE_CHECKING, Any

from codespec import __version__
from codespec.backends.language_model import LanguageModel, Rows
from codespec.files import Kept, digest
from codespec.speculation.cost_model import CostTable, ForwardCost, Point
from codespec.store.machine import processor
from codespec.text.align import retokenize_batch
from codespec.user_folders import cache_folder

if TYPE_CHECKING:
    from codespec.backends.heads.drafting import HeadRunner

ForwardShape = tuple[int, int, int]  # rows, batch, context

SHORT, LONG = 64, 1024  # contexts in tokens
GRIDS = (  # (numbers of rows at the short context, at the long one), finest first
    ((1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64), (1, 4, 8, 16, 32)),
    ((1, 2, 4, 8, 16, 32), (1, 8, 16)),
    ((1, 4, 16), (1,)),
)
MAX_SWEEPS = 12
NO_HEADS: Mapping[str, HeadRunner] = {}
TIMING_BUDGET_S = 1.5  # seconds for all models together
VERSION = 9  # of the measurement; results of other versions are ignored
TRIES = 5
COLD_CACHE_S = 1.4e-4  # seconds that a forward pass loses after lookup and encoding of a draft, which cool the caches
DRAFT_OVERHEAD_S = 6e-5  # seconds per draft for lookup, pricing and acceptance, without encoding
TEXT, DRAFT = b"    return self.value\n    def first(self, ", b"values):\n        for value in values:\n"
HEAD_ROWS, HEAD_BATCHES = (1, 2, 4, 16, 64), (2, 4, 8, 16)  # numbers of positions that a head reads, and of texts
HEAD_TURNS, HEAD_SECONDS = 5, 0.5  # after two turns, no turn starts later than HEAD_SECONDS


def measure(models: Sequence[LanguageModel], budget: float) -> list[dict[ForwardShape, float]]:
    """Return each model's seconds of a forward pass by shape, measured in sweeps over all models. Empties all slots."""
    shapes = [_grid(model, budget / len(models)) for model in models]
    taken: list[dict[ForwardShape, list[float]]] = [{shape: [] for shape in grid} for grid in shapes]
    began, sweeps = time.perf_counter(), 0
    while not sweeps or (sweeps < MAX_SWEEPS and (time.perf_counter() - began) * (1 + 0.5 / sweeps) < budget):
        for model, grid, found in zip(models, shapes, taken, strict=True):
            time_forward(model, grid[0])  # warm-up, because the step before left other data in the caches
            for shape in grid:
                found[shape].append(time_forward(model, shape))
        sweeps += 1
    for model in models:
        empty_slots(model)
    # median_low ignores a slow first sweep, in which kernels are compiled.
    return [{shape: median_low(times) for shape, times in found.items()} for found in taken]


def _grid(model: LanguageModel, budget: float) -> list[ForwardShape]:
    """Return the finest grid of shapes that can be timed three times within the budget."""
    assert model.cache is not None
    long = min(LONG, model.cache.capacity - 64)
    batches = [batch for batch in (2, 4, 8, 16, 32) if batch <= model.cache.slots]
    once = min(time_forward(model, (1, 1, SHORT)) for _ in range(3))
    grids = [shapes_of(short, at_long, batches, long) for short, at_long in GRIDS]
    return next((grid for grid in grids if 3.0 * once * len(grid) <= budget), grids[-1])


def empty_slots(model: LanguageModel) -> None:
    """Discard the contents of all cache slots of a model."""
    assert model.cache is not None
    for slot in range(model.cache.slots):
        model.rollback(slot, 0)


def shapes_of(short: Sequence[int], at_long: Sequence[int], batches: Sequence[int], long: int) -> list[ForwardShape]:
    """List the shapes to time: single texts with these numbers of rows at a short and a long context, and batches."""
    found = [(rows, 1, SHORT) for rows in short]
    if long > SHORT:
        found += [(rows, 1, long) for rows in at_long]
    return sorted(found + [(batch, batch, SHORT) for batch in batches])


def time_forward(model: LanguageModel, shape: ForwardShape) -> float:
    """Return the seconds of one forward pass of this shape, from ids to logits, in slots 0 to batch - 1."""
    rows, batch, context = shape
    return time_rows(model, [rows // batch] * batch, context)


def time_rows(model: LanguageModel, counts: Sequence[int], context: int, keep: int | None = None) -> float:
    """Return the seconds of a forward pass in which slot i computes `counts[i]` rows after `context` positions.

    Logits are computed for the last `keep` rows of each slot (None: for all rows).
    """
    parts = [Rows(slot, context, [slot + 1] * rows, keep or rows) for slot, rows in enumerate(counts)]
    for part in parts:
        model.admit(part.slot, context + len(part.ids))
        model.assume(part.slot, context)
    return timed(lambda: model.step(parts), model.wait)


def turns(seconds: float, most: int, least: int = 1) -> Iterator[int]:
    """Count from 0, yielding at most `most` numbers. After `least` numbers, stop once `seconds` seconds have passed."""
    began = time.perf_counter()
    for turn in range(most):
        if turn >= least and time.perf_counter() - began >= seconds:
            return
        yield turn


def timed(action: Callable[[], object], wait: Callable[[], object] = lambda: None) -> float:
    """Return the seconds that an action takes, including its work on a device, for which `wait` waits."""
    wait()
    began = time.perf_counter()
    action()
    wait()
    return time.perf_counter() - began


def kept_file(kind: str, version: int, *facts: object) -> Path:
    """Return the path of a saved measurement, named by a hash of `version`, `facts`, codespec and the machine."""
    machine = (__version__, platform.node(), processor().label)
    return cache_folder() / kind / f"{digest((version, *machine, *facts))}.json"


def price(
    target: LanguageModel,
    drafters: Mapping[str, LanguageModel],
    notes: MutableSequence[str],
    heads: Mapping[str, HeadRunner] = NO_HEADS,
) -> CostTable:
    """Return the saved cost table, or measure and save a table. The models' cache slots must be free."""
    measure = partial(measure_table, target, drafters, TIMING_BUDGET_S, heads)
    return kept_table(target, drafters, heads).get(measure, notes)


def kept_table(
    target: LanguageModel, drafters: Mapping[str, LanguageModel], heads: Mapping[str, HeadRunner] = NO_HEADS
) -> Kept[CostTable]:
    """Return the file with a cost table, whose name depends on the models, their calls and their cache slots."""
    facts: list[object] = [head.config for head in heads.values()]
    for model in (target, *drafters.values()):
        slots = (model.cache.slots, model.cache.capacity) if model.cache else ()
        facts.append((*model.facts, *model.call_facts, slots))
    return Kept(kept_file("costs", VERSION, *facts), "cost table", CostTable.from_dict, asdict)


def measure_table(
    target: LanguageModel,
    drafters: Mapping[str, LanguageModel],
    budget: float,
    heads: Mapping[str, HeadRunner] = NO_HEADS,
) -> CostTable:
    """Measure a cost table in about `budget` seconds, plus HEAD_SECONDS for each head."""
    table = table_of(target, drafters, measure([target, *drafters.values()], budget))
    if not heads:
        return table
    costs = {name: _cost(measure_head(head)) for name, head in heads.items()}
    whole = tuple(name for name, head in heads.items() if head.whole)
    return replace(table, drafters={**table.drafters, **costs}, whole=whole)


def table_of(
    target: LanguageModel, drafters: Mapping[str, LanguageModel], times: Sequence[Mapping[ForwardShape, float]]
) -> CostTable:
    """Build a cost table from the forward times of the target and the drafters, and measure the cost of a draft."""
    first, *others = map(_cost, times)
    return CostTable(first, dict(zip(drafters, others, strict=True)), _draft_seconds(target))


def _cost(times: Mapping[ForwardShape, float]) -> ForwardCost:
    return ForwardCost.from_points(Point(*shape, seconds) for shape, seconds in times.items())


def _draft_seconds(target: LanguageModel) -> float:
    """Return the seconds of one draft without forward passes, with encoding timed while the CPU's caches are cold."""
    times = []
    for _ in range(TRIES):
        target.step([Rows(0, 0, [1, 1])])
        times.append(timed(partial(retokenize_batch, target.tokenizer, [(TEXT, DRAFT)]), target.wait))
    target.rollback(0, 0)
    return median(times) + COLD_CACHE_S + DRAFT_OVERHEAD_S


def measure_head(runner: HeadRunner) -> Mapping[ForwardShape, float]:
    """Return the seconds of a head's forward pass by shape (positions to read, batch, context). Empties its slots."""
    import torch

    from codespec.backends.heads.drafting import Reading

    def first(rows: int, batch: int, context: int) -> Any:
        ids = [1] * (context + 1)
        return runner.first([Reading(slot, ids, context - rows // batch) for slot in range(batch)])

    slots, long = len(runner.cache.done), min(LONG, runner.cache.kept.capacity - 64)
    shapes = shapes_of(HEAD_ROWS, HEAD_ROWS, [batch for batch in HEAD_BATCHES if batch <= slots], long)
    taken: dict[ForwardShape, list[float]] = {shape: [] for shape in shapes}
    with torch.inference_mode():
        for _ in turns(HEAD_SECONDS, HEAD_TURNS, 2):
            for shape, times in taken.items():
                times.append(timed(partial(first, *shape), runner.target.wait))
    for slot in range(slots):
        runner.cache.cut(slot, 0)
    return {shape: median(times) for shape, times in taken.items()}
