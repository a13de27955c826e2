"""Large arrays that take memory only where they are written."""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod

import numpy as np
from numpy.typing import NDArray


def untouched_zeros(shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """Return zeros of this shape. Raises MemoryError if there is no room.

    In huge pages, which numpy asks for, a token of each slot would make the whole cache resident.
    """
    try:
        memory = mmap.mmap(-1, max(1, prod(shape) * 2))
    except (OSError, OverflowError) as error:
        raise MemoryError from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages refuses the advice
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint16, count=prod(shape)).reshape(shape)
