"""The context tracker at scale: a thousand edits per language, and the cost of a decision in large or hostile files.

The files have 10,000 lines. Writes docs/tracker.json.
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from codespec_grammars import ContextTracker

from tests.full.report import write_report
from tests.grammars.sources import CORE, source_of
from tests.grammars.test_bounds import HOSTILE
from tests.grammars.test_edits import check

pytestmark = pytest.mark.full
LINES, PIECES = 10_000, 12


@pytest.mark.parametrize("language", CORE)
def test_a_thousand_edits(language: str) -> None:
    check(language, 1000, seed=1)


def long_file(language: str) -> bytes:
    source = source_of(language)
    return (source + b"\n") * (LINES // source.count(b"\n") + 1)


def garbage(seed: int) -> bytes:
    """Return symbols and words in random order."""
    pieces = [
        b"(",
        b")",
        b"{",
        b"}",
        b"[",
        b"]",
        b"<",
        b">",
        b"*",
        b"&",
        b"::",
        b",",
        b";",
        b"=",
        b"\n",
        b"'",
        b"name ",
        b"if ",
    ]
    return b"".join(random.Random(seed).choices(pieces, k=20_000))


def measure(language: str, source: bytes, places: int) -> list[float]:
    """Return the thread time of each decision in milliseconds, sorted, while text is typed at random positions.

    The pieces are a few bytes long, with and without a suffix. The first decision at a position includes lexing its
    window.
    """
    chance, times = random.Random(0), []
    for _ in range(places):
        cut = chance.randrange(len(source))
        suffix = source[source.find(b"\n", cut) :] if chance.random() < 0.7 else b""
        tracker = ContextTracker(language, source[:cut], suffix)
        for _ in range(PIECES):
            size = chance.randrange(1, 16)
            tracker.advance(source[cut : cut + size])
            cut += size
            start = time.thread_time()
            tracker.context()
            times.append((time.thread_time() - start) * 1e3)
    return sorted(times)


def figures(language: str, source: bytes, places: int) -> dict[str, float]:
    times = measure(language, source, places)
    parts = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}
    return {name: round(times[int(len(times) * part)], 2) for name, part in parts.items()} | {
        "max_ms": round(times[-1], 2)
    }


def test_what_a_decision_costs() -> None:
    rows: dict[str, Any] = {"files of 10,000 lines": {name: figures(name, long_file(name), 80) for name in CORE}}
    for name, text in HOSTILE.items():
        rows[name] = {language: figures(language, text, 20) for language in ("python", "cpp", "typescript")}
    rows["garbage"] = {name: figures(name, garbage(0), 20) for name in CORE}
    write_report("tracker", "make test-full", rows)
    slowest = max(row["p50_ms"] for row in rows["files of 10,000 lines"].values())
    assert all(row["p99_ms"] < 20 * slowest for table in rows.values() for row in table.values())


@pytest.mark.parametrize("language", CORE)
def test_real_files_are_parsed_to_their_end(language: str) -> None:
    source, chance, given_up, parsed = long_file(language), random.Random(0), 0, 0
    for _ in range(300):
        cut = chance.randrange(len(source))
        tracker = ContextTracker(language, source[:cut], source[cut:])
        tracker.context()
        given_up += tracker.given_up
        parsed += tracker.bytes_parsed > 0
    assert parsed >= 200 and given_up * 50 <= parsed
