"""Time a model's forwards on this machine, within a budget of seconds.

Measures by rows, context and batch, by number of threads, and for one shape of call against another. Points are visited
in turn repeatedly, and each keeps its median, so that a busy moment does not affect one point only. Minimum times would
reflect the machine's best moments, when additional rows cost less relative to the first than they usually do. The
models' slots must be free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median, median_low

import torch

from codespec.models.call_shape import CallShape
from codespec.models.language_model import LanguageModel
from codespec.models.rows import Rows

Shape = tuple[int, int, int]  # rows, batch, context
Timer = Callable[[LanguageModel], float]

SHORT, LONG = 64, 1024  # tokens of context
GRIDS = (  # rows at the short context, rows at the long one; finest first
    ((1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64), (1, 4, 8, 16, 32)),
    ((1, 2, 4, 8, 16, 32), (1, 8, 16)),
    ((1, 4, 16), (1,)),
)
MOST_SWEEPS = 12
TURN = 5  # forwards with one thread count before the next takes its turn
CLEARLY = 0.9
LEAST_TURNS, MOST_TURNS = 3, 15  # when comparing two shapes of call


def measure(models: Sequence[LanguageModel], budget: float) -> list[dict[Shape, float]]:
    """Return, for each model, the seconds of a forward by shape (rows, batch, context). Leaves the slots empty.

    All models take part in each turn, so that a busy minute does not make one look cheap relative to another.
    """
    shapes = [_grid(model, budget / len(models)) for model in models]
    taken: list[dict[Shape, list[float]]] = [{shape: [] for shape in grid} for grid in shapes]
    began, sweeps = time.perf_counter(), 0
    while not sweeps or (sweeps < MOST_SWEEPS and (time.perf_counter() - began) * (1 + 0.5 / sweeps) < budget):
        for model, grid, found in zip(models, shapes, taken, strict=True):
            time_forward(model, grid[0])  # warm up: the larger step before left other data in the caches
            for shape in grid:
                found[shape].append(time_forward(model, shape))
        sweeps += 1
    for model in models:
        _empty(model)
    # median_low drops a slow first visit, in which kernels are compiled.
    return [{shape: median_low(times) for shape, times in found.items()} for found in taken]


def _grid(model: LanguageModel, budget: float) -> list[Shape]:
    """Return the finest grid of shapes that the budget allows to visit three times."""
    assert model.cache is not None
    long = min(LONG, model.cache.capacity - 64)
    batches = [batch for batch in (2, 4, 8, 16, 32) if batch <= model.cache.slots]
    once = min(time_forward(model, (1, 1, SHORT)) for _ in range(3))
    grids = [_shapes(short, at_long, batches, long) for short, at_long in GRIDS]
    return next((grid for grid in grids if 3.0 * once * len(grid) <= budget), grids[-1])


def _empty(model: LanguageModel) -> None:
    assert model.cache is not None
    for slot in range(model.cache.slots):
        model.rollback(slot, 0)


def choose_threads(model: LanguageModel, most: int, budget: float = 1.0) -> int:
    """Return the least thread count, doubling from 1 to `most`, that no larger one clearly beats.

    The criterion is the 95th percentile of a small verification: on shared cores several threads often stall. Takes
    about `budget` seconds in turns of a few forwards, at least one turn per count. Leaves the slots empty.
    """
    counts = sorted({*(1 << power for power in range(most.bit_length())), most})
    times: dict[int, list[float]] = {count: [] for count in counts}
    rows = min(8, model.spec.max_length - 1)
    verify: Shape = (rows, 1, min(SHORT, model.spec.max_length - rows))
    before, began = torch.get_num_threads(), time.perf_counter()
    while not times[most] or time.perf_counter() - began < budget:
        for threads, found in times.items():
            torch.set_num_threads(threads)
            time_forward(model, verify)  # the first forward wakes the threads
            found += [time_forward(model, verify) for _ in range(TURN)]
    torch.set_num_threads(before)
    _empty(model)
    late = {threads: sorted(found)[int(0.95 * len(found))] for threads, found in times.items()}
    best = 1
    for threads in counts:
        if late[threads] < CLEARLY * late[best]:
            best = threads
    return best


def _shapes(short: Sequence[int], at_long: Sequence[int], batches: Sequence[int], long: int) -> list[Shape]:
    found = [(rows, 1, SHORT) for rows in short]
    if long > SHORT:
        found += [(rows, 1, long) for rows in at_long]
    return sorted(found + [(batch, batch, SHORT) for batch in batches])


def time_forward(model: LanguageModel, shape: Shape) -> float:
    """Return the seconds of one forward of this shape, in slots 0 to batch - 1, from ids to logits."""
    rows, batch, context = shape
    return time_rows(model, [rows // batch] * batch, context)


def time_rows(model: LanguageModel, counts: Sequence[int], context: int) -> float:
    """Return the seconds of a forward in which slot i computes `counts[i]` rows after `context` positions."""
    parts = [Rows(slot, context, [slot + 1] * rows, keep=rows) for slot, rows in enumerate(counts)]
    for part in parts:
        model.admit(part.slot, context + len(part.ids), context)
    finish(model.device)
    began = time.perf_counter()
    model.forward(parts)
    finish(model.device)
    return time.perf_counter() - began


def finish(device: torch.device) -> None:
    """Wait for pending work on a device, so that the clock can be read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_prompt(model: LanguageModel, length: int, chunk: int) -> float:
    """Return the seconds of a `length`-token prompt in slot 0, in chunks of `chunk`, until the last row's logits."""
    model.admit(0, length)
    began = time.perf_counter()
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        model.forward([Rows(0, start, [1] * (end - start), keep=int(end == length))])
    return time.perf_counter() - began


def cost_over_fast(
    model: LanguageModel, calls: CallShape, fast: CallShape, timers: Sequence[Timer], seconds: float
) -> list[float]:
    """Return, for each timer, the median ratio of its time in `calls` to that in `fast`.

    Runs for about `seconds`. Leaves the model in `calls` and its slots empty.
    """
    for shape in (fast, calls):  # compile kernels before measuring
        model.use(shape)
        for timer in timers:
            timer(model)
    ratios: list[list[float]] = [[] for _ in timers]
    began, turn = time.perf_counter(), 0
    while turn < LEAST_TURNS or (turn < MOST_TURNS and time.perf_counter() - began < seconds):
        for timer, found in zip(timers, ratios, strict=True):
            taken = {}
            for shape in (calls, fast) if turn % 2 else (fast, calls):
                model.use(shape)
                taken[shape] = timer(model)
            found.append(taken[calls] / taken[fast])
        turn += 1
    model.use(calls)
    _empty(model)
    return [median(found) for found in ratios]
