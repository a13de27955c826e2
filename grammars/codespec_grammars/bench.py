"""Measure the time of a context decision: `python -m codespec_grammars.bench [FILE …]`.

Without files, it uses modules of Python's standard library. Each file is repeated to 10,000 lines. Text is typed at
random positions in pieces of a few bytes, with and without a suffix.
"""

from __future__ import annotations

import inspect
import random
import sys
import time
import typing
from pathlib import Path

from codespec_grammars.registry import find_language
from codespec_grammars.tracker import ContextTracker

LINES, PLACES, PIECES = 10_000, 80, 12


def measure(language: str, source: bytes, places: int = PLACES, seed: int = 0) -> list[float]:
    """Return the thread time of each decision in milliseconds, sorted.

    The first decision at each position includes lexing its window.
    """
    chance, times = random.Random(seed), []
    for _ in range(places):
        cut = chance.randrange(len(source))
        tracker = ContextTracker(
            language, source[:cut], source[source.find(b"\n", cut) :] if chance.random() < 0.7 else b""
        )
        for _ in range(PIECES):
            size = chance.randrange(1, 16)
            tracker.advance(source[cut : cut + size])
            cut += size
            start = time.thread_time()
            tracker.context()
            times.append((time.thread_time() - start) * 1e3)
    return sorted(times)


def report(name: str, language: str, source: bytes) -> None:
    """Print one line with the percentiles for a file."""
    lines = max(1, source.count(b"\n"))
    times = measure(language, source * (LINES // lines + 1))
    p50, p90, p99 = (times[int(len(times) * part)] for part in (0.5, 0.9, 0.99))
    print(f"{name:24} {language:12} p50 {p50:5.2f}  p90 {p90:5.2f}  p99 {p99:5.2f}  max {times[-1]:5.2f} ms")


def main(arguments: list[str]) -> int:
    """Measure each file with a known language."""
    if not arguments:
        report("inspect + typing", "python", (inspect.getsource(inspect) + inspect.getsource(typing)).encode())
    for path in map(Path, arguments):
        language = find_language(path=path.name)
        if language:
            report(path.name, language, path.read_bytes())
        else:
            print(f"{path.name}: no grammar for this file name", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
