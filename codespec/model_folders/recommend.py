"""Recommend a model for this machine, with one rule for the default, the suggestion to pull, lists and pages.

Uses the machine's memory, its recorded speed and the catalogue's advice. Downloads and measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from codespec.catalogue.disk import written
from codespec.catalogue.entries import read_advice, read_catalogue
from codespec.model_folders.machine import machine_memory
from codespec.model_folders.step_time import read_step

LARGER, SMALLER, SMALLEST = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct", "smollm2-135m"
DEFAULTS = (LARGER, SMALLER, SMALLEST)  # models chosen, downloaded or suggested by default
SLOWEST = 45.0  # milliseconds per token: suggestions of a slower model come too late
FREE = 0.75  # share of the machine's memory: the catalogue states free memory, and an editor is open too
ON_PROCESSOR = 2e9  # parameters: a larger target is too slow for suggestions without a GPU


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A catalogue model, and the reason as a clause for the user."""

    model: str
    why: str


def recommend(*, gpu: bool = False) -> Recommendation:
    """Return the model recommended for this machine, on its processor or on its GPU."""
    return decide(machine_memory(), read_step(), gpu=gpu)


def decide(memory: int | None, step: float | None, *, gpu: bool = False) -> Recommendation:
    """Return the recommendation for `memory` bytes and `step` milliseconds per token; None means unknown.

    With a GPU: the largest model that fits in memory. Otherwise 1.5 B in int8 if it fits in memory and a token is known
    to take at most `SLOWEST` milliseconds, else 0.5 B, else SmolLM2.
    """
    fitting = [advice.target for advice in read_advice() if advice.gigabytes * 1e9 <= FREE * (memory or 0)]
    if gpu and fitting and read_catalogue()[fitting[-1]].parameters > ON_PROCESSOR:
        return Recommendation(fitting[-1], "the largest that the memory takes, on a GPU")
    if memory is None:
        return Recommendation(SMALLER, "how much memory there is here is not known")
    if SMALLER not in fitting:
        return Recommendation(SMALLEST, f"there are {written(memory)} of memory here")
    if LARGER not in fitting:
        return Recommendation(SMALLER, f"the 1.5B model needs more than {written(memory)} of memory")
    if step is None:
        return Recommendation(SMALLER, "how fast this machine computes has not been measured yet")
    if step == inf:
        return Recommendation(SMALLER, "int8 does not run on this processor")
    took = f"a token of the 1.5B model takes {step:.0f} ms here"
    return Recommendation(LARGER, took) if step <= SLOWEST else Recommendation(SMALLER, took)


def takes_larger() -> bool:
    """Return whether the larger default model fits in memory, so that the speed decides."""
    return decide(machine_memory(), 0.0).model == LARGER
