"""Report the progress of a download, from the size of its folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from codespec.catalogue.disk import folder_size

EVERY = 0.5  # seconds
Tell = Callable[[int], None]  # takes the percentage


@contextmanager
def watched(folder: Path, size: int, tell: Tell) -> Iterator[None]:
    """Report the percentage of `size` bytes in the folder while the block runs, each value once."""
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
        if percent > told:  # temporary files that are deleted do not lower the percentage
            tell(percent)
            told = percent
        if over.wait(EVERY):
            return
