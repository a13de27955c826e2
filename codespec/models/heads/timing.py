"""Measure the time of a head's forward by rows, batch and context, at startup on free slots."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median

import torch

from codespec.models.heads.drafting import HeadRunner, Reading
from codespec.models.timing import LONG, SHORT, Shape, finish

READS = (1, 2, 4, 16, 64)  # positions to read, for a single text
BATCHES = (2, 4, 8, 16)
TRIES = 5
PATIENCE = 0.5  # time limit per head in seconds


@torch.inference_mode()
def measure_head(runner: HeadRunner) -> Mapping[Shape, float]:
    """Return the seconds of a draft's first forward for each shape (positions to read, batch, context).

    Clears all slots of the head's cache.
    """
    slots, long = len(runner.cache.done), min(LONG, runner.cache.capacity - 64)
    shapes: list[Shape] = [(rows, 1, SHORT) for rows in READS]
    shapes += [(rows, 1, long) for rows in READS if long > SHORT]
    shapes += [(batch, batch, SHORT) for batch in BATCHES if batch <= slots]
    taken: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    began = time.perf_counter()
    for turn in range(TRIES):
        if turn > 1 and time.perf_counter() - began > PATIENCE:
            break
        for shape, found in taken.items():
            found.append(_time_first(runner, shape))
    for slot in range(slots):
        runner.cache.cut(slot, 0)
    return {shape: median(found) for shape, found in taken.items()}


def _time_first(runner: HeadRunner, shape: Shape) -> float:
    rows, batch, context = shape
    ids = [1] * (context + 1)
    readings = [Reading(slot, ids, context - rows // batch) for slot in range(batch)]
    finish(runner.device)
    began = time.perf_counter()
    runner.first(readings)
    finish(runner.device)
    return time.perf_counter() - began
