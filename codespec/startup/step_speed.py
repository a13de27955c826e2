"""Measure the int8 products of one decode step of a 1.5 B model: `python -m codespec.startup.step_speed`.

Prints the milliseconds. The weights are random, in several copies, so that they come from memory as in
a real model.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from math import inf

import torch
from torch import Tensor

from codespec.errors import ModelError
from codespec.models.int8.kernels import FULL, choose_kernel
from codespec.startup.timing import turns
from codespec.store.choice import SLOWEST
from codespec.store.processor import processor

LAYERS, COPIES = 28, 8
LAYER = ((2048, 1536), (1536, 1536), (17920, 1536), (1536, 8960))  # (out, in) of attention's two and the MLP's two
# The head has 151,936 rows of 1536. It is measured as 9 products of the MLP's shape (8.5, rounded), because packing it
# would take longer than everything else.
LARGE, HEAD = 2, 9
SECONDS, MOST_STEPS, WARM_UP = 0.8, 20, 1


def main() -> int:
    """Measure and print the result, infinity without a kernel. Return 1 if it is slow because the machine is busy."""
    try:
        milliseconds = measure()
    except ModelError as error:  # no kernel also counts as a result
        print(error, file=sys.stderr)
        milliseconds = inf
    if milliseconds > SLOWEST and _is_busy():
        print("the machine is busy: it is measured again later", file=sys.stderr)
        return 1
    print(milliseconds)
    return 0


def measure() -> float:
    """Return the milliseconds of the fastest step, with one thread or one thread per core.

    Slower steps were disturbed by other programs. Raise ModelError if no int8 kernel works.
    """
    torch.set_num_threads(1)  # on a busy machine thread synchronization makes a kernel look slow
    chosen = choose_kernel()
    kernel = chosen.kernel

    def pack(weight: Tensor) -> object:
        return kernel.pack(weight.clone(), torch.ones(len(weight)))

    def draw(shape: tuple[int, int]) -> Tensor:
        return torch.randint(-chosen.most, chosen.most + 1, shape, dtype=torch.int8)

    def encode(width: int) -> Tensor:
        return kernel.encode(torch.randint(-FULL, FULL + 1, (1, width)).float())

    weights = [draw(shape) for shape in LAYER]
    layers = [[pack(weight) for weight in weights] for _ in range(COPIES)]
    rows = [encode(width) for _, width in LAYER]

    def step() -> float:
        began = time.perf_counter()
        for layer in range(LAYERS):
            for row, matrix in zip(rows, layers[layer % COPIES], strict=True):
                kernel.multiply(row, matrix)
        for product in range(HEAD):
            kernel.multiply(rows[LARGE], layers[product % COPIES][LARGE])
        return time.perf_counter() - began

    with torch.inference_mode():
        return 1e3 * min(_fastest(step, threads) for threads in sorted({1, processor().cores}))


def _is_busy() -> bool:
    """Return whether the load average exceeds the cores by more than one; False if it is not available."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > processor().cores + 1


def _fastest(step: Callable[[], float], threads: int) -> float:
    torch.set_num_threads(threads)
    for _ in range(WARM_UP):
        step()
    return min(step() for _ in turns(SECONDS, MOST_STEPS))


if __name__ == "__main__":
    sys.exit(main())
