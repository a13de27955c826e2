"""How much of a download has arrived, for a program that shows it. Knows a folder and its size to be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from codespec.catalogue.disk import folder_size

EVERY = 0.5  # seconds
Tell = Callable[[int], None]  # takes percent


@contextmanager
def watched(folder: Path, size: int, tell: Tell) -> Iterator[None]:
    """Tells the percent of `size` bytes that lie in the folder, each number once, while the block runs."""
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(folder, size, tell, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(folder: Path, size: int, tell: Tell, over: threading.Event) -> None:
    told = -1
    while True:
        percent = min(100, 100 * folder_size(folder) // max(1, size))
        if percent > told:  # what is unpacked or thrown away on the way does not count backwards
            tell(percent)
            told = percent
        if over.wait(EVERY):
            return
