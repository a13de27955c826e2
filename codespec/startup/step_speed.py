"""Measure the products of one decode step of a 1.5 B model in four bits: `python -m codespec.startup.step_speed`.

Prints the milliseconds. The weights are the same numbers in several copies, so that they come from memory as in a real
model. Loads no torch.
"""

from __future__ import annotations

import os
import sys
import time
from math import inf

import numpy as np
from codespec_native.library import Matrix, NativeError, Pool, block_bytes, find_path

from codespec.startup.timing import turns
from codespec.store.choice import SLOWEST
from codespec.store.machine import processor

LAYERS, COPIES = 28, 8
LAYER = ((2048, 1536), (1536, 1536), (17920, 1536), (1536, 8960))  # (out, in) of attention's two and the MLP's two
# The head has 151,936 rows of 1536. It is measured as 9 products of the MLP's shape (8.5, rounded), because packing it
# would take longer than everything else.
LARGE, HEAD = 2, 9
Q4_K = 12  # the format of most weights of such a file
SECONDS, MAX_STEPS, WARM_UP = 0.8, 20, 1


def main() -> int:
    """Measure and print the result, infinity without kernels. Return 1 if it is slow because the machine is busy."""
    try:
        milliseconds = measure()
    except NativeError as error:  # no kernels also count as a result
        print(error, file=sys.stderr)
        milliseconds = inf
    if milliseconds > SLOWEST and _is_busy():
        print("the machine is busy: it is measured again later", file=sys.stderr)
        return 1
    print(milliseconds)
    return 0


def measure() -> float:
    """Return the milliseconds of the fastest step, with one thread or one thread per core.

    Slower steps were disturbed by other programs. Raise NativeError if the library is missing.
    """
    return 1e3 * min(_fastest(threads) for threads in sorted({1, processor().cores}))


def _fastest(threads: int) -> float:
    pool, path = Pool(threads), find_path()
    layers = [[_weights(pool, outputs, inputs) for outputs, inputs in LAYER] for _ in range(COPIES)]
    rows = [np.ones((1, inputs), dtype=np.float32) for _, inputs in LAYER]

    def step() -> float:
        began = time.perf_counter()
        for layer in range(LAYERS):
            for row, matrix in zip(rows, layers[layer % COPIES], strict=True):
                matrix.multiply(row, pool, path)
        for product in range(HEAD):
            layers[product % COPIES][LARGE].multiply(rows[LARGE], pool, path)
        return time.perf_counter() - began

    for _ in range(WARM_UP):
        step()
    return min(step() for _ in turns(SECONDS, MAX_STEPS))


def _weights(pool: Pool, outputs: int, inputs: int) -> Matrix:
    """Return a matrix whose bytes are all one: their values do not matter for the time."""
    return Matrix(pool, Q4_K, outputs, inputs, np.ones((outputs, block_bytes(Q4_K, inputs)), dtype=np.uint8))


def _is_busy() -> bool:
    """Return whether the load average exceeds the cores by more than one; False if it is not available."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > processor().cores + 1


if __name__ == "__main__":
    sys.exit(main())
