"""Shared parts of the fuzzers: time limit, damaged JSON, and a memory check of a process."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MINUTES = "FUZZ_MINUTES"  # minutes for each fuzzer; default 1
SEED = "FUZZ_SEED"  # random seed; default: from the clock
NESTED = "[" * 200 + "]" * 200
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 255, 65_536, 2**31, 2**53, 2**63, 10**30, 1.5, -0.0, 1e308, 1e-320),
    *(
        "",
        "x",
        "\n",
        "\0",
        "a" * 5000,
        "é\U0001f600",
        "\ud800",
        "<|fim_prefix|>",
        "../../etc/passwd",
        "file:///a.py",
        "%00",
    ),
    *([], [1], ["a"], [[]], [None] * 50, {}, {"a": 1}, [{}], {"": {}}, [[[[[[1]]]]]]),
]


class Finding(AssertionError):
    """A failure, with the bytes that reproduce it."""

    def __init__(self, what: str, given: object) -> None:
        super().__init__(f"{what}\nreproduce it with: {given!r}")


def dice(name: str) -> random.Random:
    """Return a run's random generator and print its seed."""
    seed = int(os.environ.get(SEED) or time.time_ns() % 10**9)
    print(f"\n{name}: {SEED}={seed}")
    return random.Random(f"{name} {seed}")


def turns() -> Iterator[int]:
    """Yield numbers until the time is over."""
    end, number = time.monotonic() + 60 * float(os.environ.get(MINUTES) or 1), 0
    while time.monotonic() < end:
        yield number
        number += 1
    print(f"{number} turns")


def damaged(value: Any, chance: random.Random, times: int = 1) -> Any:
    """Return JSON with some of its values replaced, removed, duplicated or nested one level deeper."""
    for _ in range(times):
        value = _damaged(value, chance)
    return value


def _damaged(value: Any, chance: random.Random) -> Any:
    inner = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not inner or chance.random() < 0.1:
        return chance.choice([*VALUES, [value], {"a": value}])
    copy = dict(value) if isinstance(value, dict) else list(value)
    place = chance.choice(inner)
    what = chance.random()
    if what < 0.6:
        copy[place] = _damaged(copy[place], chance)
    elif what < 0.8:
        copy[place] = chance.choice(VALUES)
    elif what < 0.9:
        del copy[place]
    elif isinstance(copy, list):
        copy += copy[place : place + 1] * chance.choice([1, 3, 300])
    else:
        copy[str(chance.choice(VALUES))[:100]] = copy[place]
    return copy


def scratched(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with some replaced, removed, duplicated or inserted."""
    for _ in range(chance.choice([1, 1, 2, 8])):
        place, length = chance.randrange(len(data) + 1), chance.choice([0, 1, 1, 4, 100])
        piece = chance.choice(
            [b"", chance.randbytes(4), b'"', b"{", b"]", b"\0", b"\r\n", data[place : place + length] * 3]
        )
        data = data[:place] + piece + data[place + length :]
    return data


def resident(number: int) -> int:
    """Return the resident memory of a process in bytes."""
    pages = int(Path(f"/proc/{number}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Memory:
    """Growth check of a process's memory, starting after `settled` turns."""

    def __init__(self, number: int, settled: int) -> None:
        self.number, self.settled, self.first = number, settled, 0

    def look(self, turn: int, given: object) -> None:
        """Raise Finding if memory has grown by more than half plus 64 MiB."""
        if turn < self.settled:
            return
        now = resident(self.number)
        self.first = self.first or now
        if now > 1.5 * self.first + (64 << 20):
            raise Finding(f"the process has grown from {self.first >> 20} to {now >> 20} MB", given)
