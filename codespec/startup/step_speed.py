"""Time the matrix products of one decode step of a four-bit model with 1.5 billion parameters, without torch.

Run this module with `python -m codespec.startup.step_speed`. The weights are several copies of the same matrices, which
together exceed the CPU's caches, as the weights of a real model do.
"""

from __future__ import annotations

import os
import sys
import time
from math import inf

import numpy as np
from codespec_native.library import Matrix, NativeError, Pool, block_bytes, find_path

from codespec.startup.timing import turns
from codespec.store.choice import MAX_TOKEN_MS
from codespec.store.machine import processor

LAYERS, COPIES = 28, 8
LAYER = ((2048, 1536), (1536, 1536), (17920, 1536), (1536, 8960))  # (outputs, inputs)
# The output head has 151,936 rows of 1536. Packing such a matrix would take longer than everything else, so the head is
# replaced by HEAD products with the MLP's large matrix, which has about a ninth of the rows.
LARGE, HEAD = 2, 9
Q4_K = 12  # GGML's type of most weights in a four-bit file
SECONDS, MAX_STEPS = 0.8, 20


def main() -> int:
    """Print the milliseconds of a step (inf: no native kernels); return 1 if the step was slow on a busy machine."""
    try:
        milliseconds = measure()
    except NativeError as error:  # without kernels, the result is final too
        print(error, file=sys.stderr)
        milliseconds = inf
    if milliseconds > MAX_TOKEN_MS and _is_busy():
        print("the machine is busy: its speed is measured again later", file=sys.stderr)
        return 1
    print(milliseconds)
    return 0


def measure() -> float:
    """Return the milliseconds of the fastest step with one thread or one per core. Raises NativeError."""
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

    step()  # warm-up
    return min(step() for _ in turns(SECONDS, MAX_STEPS))


def _weights(pool: Pool, outputs: int, inputs: int) -> Matrix:
    """Return a matrix whose bytes are all one, because the values do not affect the time."""
    return Matrix(pool, Q4_K, outputs, inputs, np.ones((outputs, block_bytes(Q4_K, inputs)), dtype=np.uint8))


def _is_busy() -> bool:
    """Return whether the load average is known and exceeds the number of cores by more than one."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > processor().cores + 1


if __name__ == "__main__":
    sys.exit(main())
