"""What `exact` costs against `fast` on a CPU: the same forwards of one model in two shapes of call, in turns. Knows
clocks and a model whose slots are free; finds no shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from codespec.models.call_shape import CallShape
from codespec.models.language_model import LanguageModel, Rows

LEAST_TURNS, MOST_TURNS = 3, 15
Timer = Callable[[LanguageModel], float]


def time_prompt(model: LanguageModel, length: int, chunk: int) -> float:
    """The seconds of a prompt of `length` tokens in slot 0, `chunk` rows at once, up to the last one's logits."""
    model.admit(0, length)
    began = time.perf_counter()
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        model.forward([Rows(0, start, [1] * (end - start), keep=int(end == length))])
    return time.perf_counter() - began


def cost_over_fast(
    model: LanguageModel, calls: CallShape, fast: CallShape, timers: Sequence[Timer], seconds: float
) -> list[float]:
    """For each timer its time in `calls` over that in `fast`: the median of turns, for about `seconds`. The model is in
    `calls` and its slots are empty afterwards.
    """
    for shape in (fast, calls):  # kernels are compiled before anything counts
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
    assert model.cache is not None
    for slot in range(model.cache.slots):
        model.rollback(slot, 0)
    return [median(found) for found in ratios]
