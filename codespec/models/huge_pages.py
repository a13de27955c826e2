"""Asks the system to lay memory out in pages of 2 MB. Knows addresses; knows nothing of what stands there.

A step on a CPU reads every weight once, and with pages of 4 KB the address of each page is looked up anew, in a virtual
machine twice over: matrices of a 0.5B model were read 4-10 % faster from large pages (bench/LOG.md). It is a hint: a
system that has none to give leaves the memory as it is.
"""

from __future__ import annotations

import ctypes
import sys

PAGE = 2 << 20
ADVICE = (14, 25)  # MADV_HUGEPAGE: from now on; MADV_COLLAPSE (Linux 6.1): and what is there already, at once


def ask_huge_pages(address: int, size: int) -> None:
    """For the whole pages within `size` bytes from `address`; what they hold stays."""
    begin, end = -(-address // PAGE) * PAGE, (address + size) // PAGE * PAGE
    if sys.platform == "linux" and begin < end:
        library = ctypes.CDLL(None)
        for advice in ADVICE:
            library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
