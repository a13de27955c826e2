"""These tests run Triton's kernels in its interpreter, which must be chosen before Triton is imported: a process of
their own collects them (tests/models/cuda/test_kernels.py), any other leaves them out.

The interpreter multiplies with numpy, and numpy with BLAS, which on some processors computes a tile's last rows by
another kernel: that the order of sums is a row's own could not be seen there. Here sums go one by one.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]


class OrderedNumpy:
    """numpy, but for its product."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def matmul(left: Any, right: Any, dtype: Any) -> Any:
        """[M, K] times [K, N], the same order of sums for every row."""
        out = np.zeros((*left.shape[:-1], right.shape[-1]), dtype)
        for k in range(left.shape[-1]):
            out += left[..., k, None].astype(dtype) * right[..., k, None, :].astype(dtype)
        return out


if INTERPRETED:
    from triton.runtime import interpreter

    interpreter.np = OrderedNumpy()
