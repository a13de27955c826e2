"""Time the drafts of a head on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median

import torch

from codespec.models.heads.drafting import HeadRunner, Reading
from codespec.startup.timing import LONG, Shape, shapes_of, timed, turns

HEAD_ROWS, HEAD_BATCHES = (1, 2, 4, 16, 64), (2, 4, 8, 16)  # positions that a head reads; texts in its batch
HEAD_TURNS, HEAD_SECONDS = 5, 0.5  # turns, and seconds after two turns in which no further one starts


@torch.inference_mode()
def measure_head(runner: HeadRunner) -> Mapping[Shape, float]:
    """Return the seconds of a draft's first forward by shape (positions to read, batch, context).

    Clears all slots of the head's cache.
    """

    def wait() -> None:
        if runner.device.type == "cuda":
            torch.cuda.synchronize(runner.device)

    slots, long = len(runner.cache.done), min(LONG, runner.cache.capacity - 64)
    shapes = shapes_of(HEAD_ROWS, HEAD_ROWS, [batch for batch in HEAD_BATCHES if batch <= slots], long)
    taken: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    for _ in turns(HEAD_SECONDS, HEAD_TURNS, 2):
        for (rows, batch, context), times in taken.items():
            ids = [1] * (context + 1)
            readings = [Reading(slot, ids, context - rows // batch) for slot in range(batch)]
            times.append(timed(partial(runner.first, readings), wait))
    for slot in range(slots):
        runner.cache.cut(slot, 0)
    return {shape: median(times) for shape, times in taken.items()}
