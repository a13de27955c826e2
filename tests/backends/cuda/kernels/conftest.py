"""Run Triton's kernels in its interpreter, which must be selected before Triton is imported.

So a separate process collects these tests (tests/backends/cuda/test_kernels.py), and all others skip them.

The interpreter multiplies with numpy, whose BLAS on some processors computes a tile's last rows with another kernel.
That would hide whether a row's order of summation is independent of the other rows. Here sums are sequential.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]


class OrderedNumpy:
    """numpy with a sequential matmul."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def matmul(left: Any, right: Any, dtype: Any) -> Any:
        """Multiply [M, K] by [K, N] with the same order of summation for every row."""
        out = np.zeros((*left.shape[:-1], right.shape[-1]), dtype)
        for k in range(left.shape[-1]):
            out += left[..., k, None].astype(dtype) * right[..., k, None, :].astype(dtype)
        return out


if INTERPRETED:
    from triton.runtime import interpreter

    interpreter.np = OrderedNumpy()
