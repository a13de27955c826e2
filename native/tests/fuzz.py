"""Random formats, sizes and bytes for packing and products: `python -m native.tests.fuzz CASES SEED [LIBRARY]`.

A damaged file is one sentence (NativeError) or a matrix of strange numbers, never a crash. With a library that was
compiled with sanitizers, an access outside of what belongs to it ends the process.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from codespec_native import library
from codespec_native.library import FORMATS, Matrix, NativeError, Pool, block_bytes, find_path, paths

STRANGE = (-1, 0, 1, 15, 31, 33, 255, 257, 1 << 24, (1 << 24) + 32, (1 << 31) - 1, 1 << 31, 1 << 40)


def fuzz(cases: int, seed: int) -> Counter[str]:
    """Try random cases and return how many were packed, and how many refused."""
    dice, pool, seen = random.Random(seed), Pool(2), Counter[str]()
    for case in range(cases):
        numbers = np.random.default_rng([seed, case])
        kind = dice.choice([*FORMATS, *FORMATS, dice.randrange(-2, 64)])
        outputs = dice.choice([dice.randrange(1, 70), dice.randrange(1, 70), dice.choice(STRANGE)])
        inputs = dice.choice([256 * dice.randrange(1, 5), 32 * dice.randrange(1, 9), dice.choice(STRANGE)])
        try:
            size = block_bytes(kind, inputs) * min(max(outputs, 0), 70)
        except NativeError:
            size = dice.randrange(4096)
        size = max(0, min(size, 1 << 22) + dice.choice([0, 0, 0, 0, -1, 1, dice.randrange(-64, 64)]))
        data = numbers.integers(0, 256, size, dtype=np.uint8)
        try:
            matrix = Matrix(pool, kind, outputs, inputs, data)
        except NativeError as error:
            assert str(error).count("\n") == 0 and str(error).endswith("."), error
            seen["refused"] += 1
            continue
        rows = numbers.standard_normal((dice.randrange(1, 20), inputs)).astype(np.float32)
        product = matrix.multiply(rows, pool, find_path(dice.choice(paths())))
        assert product.shape == (len(rows), outputs)
        seen["packed"] += 1
    return seen


if __name__ == "__main__":
    if len(sys.argv) > 3:
        library.library_file = lambda: Path(sys.argv[3])
    print(dict(fuzz(int(sys.argv[1]), int(sys.argv[2]))))
