"""The number format that a training run computes in: measured, for processors differ. Knows one product of matrices."""

from __future__ import annotations

import time

import torch

FASTER = 1.2  # times, before bfloat16 is worth its rounding
PROBE = (1024, 1024, 1024)


def faster_dtype(device: str) -> str:
    """bfloat16 where its products are clearly faster (AMX, a GPU), else float32, which also keeps more."""
    if device != "cpu":
        return "bfloat16"
    seconds = {name: _time_product(getattr(torch, name)) for name in ("float32", "bfloat16")}
    return "bfloat16" if seconds["float32"] > FASTER * seconds["bfloat16"] else "float32"


def _time_product(dtype: torch.dtype) -> float:
    rows, inner, outer = PROBE
    left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, outer, dtype=dtype)
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - begun)
    return min(times)
