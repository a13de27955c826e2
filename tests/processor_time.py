"""Processor time, to be compared within one run: no test knows how fast its machine is."""

from __future__ import annotations

import time
from collections.abc import Callable


def least(work: Callable[[], object], times: int = 3) -> float:
    """Return the least processor seconds of some runs of `work`."""
    seconds = []
    for _ in range(times):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)
