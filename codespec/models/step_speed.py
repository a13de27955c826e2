"""`python -m codespec.models.step_speed`: measures what the products of one token of a 1.5 B model cost in int8 here,
prints the milliseconds and keeps them.

The weights are random and lie in several copies, so that they come from memory as in a model.
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
from codespec.model_folders.recommend import SLOWEST
from codespec.model_folders.step_time import write_step
from codespec.models.int8.kernels import FULL, choose_kernel
from codespec.models.processor import processor

LAYERS, COPIES = 28, 8
LAYER = ((2048, 1536), (1536, 1536), (17920, 1536), (1536, 8960))  # out, in: attention's two, and the MLP's two
# The head has 151,936 rows of 1536: it is measured as so many products of the MLP's shape (rounded from 8.5 to 9),
# since it would take longer to pack than all else.
LARGE, HEAD = 2, 9
SECONDS, MOST_STEPS, WARM_UP = 0.8, 20, 1


def main() -> int:
    """Measures and keeps the result; returns 0, or 1 if it can't be kept or is slow because other programs run."""
    try:
        milliseconds = measure()
    except ModelError as error:  # no kernel: that is a result too
        print(error, file=sys.stderr)
        milliseconds = inf
    if milliseconds > SLOWEST and _is_busy():
        print("the machine is busy: it is measured again later", file=sys.stderr)
        return 1
    try:
        write_step(milliseconds)
    except OSError as error:
        print(f"{error.filename} can't be written ({error.strerror})", file=sys.stderr)
        return 1
    print(f"{milliseconds:.1f}")
    return 0


def measure() -> float:
    """Milliseconds of the fastest step, with one thread or with a thread a core: other steps are disturbed by what else
    runs. ModelError if no int8 kernel runs.
    """
    torch.set_num_threads(1)  # several wait for each other while the machine is busy, and a kernel looks slow
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
    """Whether more programs run than there are cores, where the system tells."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > processor().cores + 1


def _fastest(step: Callable[[], float], threads: int) -> float:
    torch.set_num_threads(threads)
    for _ in range(WARM_UP):
        step()
    taken: list[float] = []
    while not taken or (sum(taken) < SECONDS and len(taken) < MOST_STEPS):
        taken.append(step())
    return min(taken)


if __name__ == "__main__":
    sys.exit(main())
