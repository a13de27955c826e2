"""How much the memory of accepted texts adds when a typist repeats similar edits in one repository.

    python -m tools.typist_memory [--model NAME] [--dtype TYPE] [--files N] [--places N]

The repository is a package of Python's own library. At places of its files the typist asks for a completion and accepts
it where its first line is what stands there; else the line is typed. Days, each with a daemon of its own: one, then
other places of the same files, then the places of the first day again. With the memory and without, both with drafter
and lookup and a fixed draft length; rounds are counted, not timed. Knows engines and files.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from codespec.engine.load import build_engine
from codespec.memory.accepted import Accepted, Memory
from codespec.model_folders.choice import choose
from codespec.types import CompletionRequest, Stats

SCOPE = "typist"
ROOT = Path(asyncio.__file__).parent
SETTINGS = {"policy": "fixed:8", "learn": False, "threads": 1, "max_batch": 1, "context": 1024}


@dataclass(frozen=True, slots=True)
class Place:
    """A cursor behind a line's first word, and the rest of the line as it stands there."""

    path: str
    prefix: str
    truth: str
    suffix: str


def find_places(files: Sequence[Path], count: int, seed: int) -> list[Place]:
    """So many places of each file, from top to bottom."""
    dice, found = random.Random(seed), []
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        usable = [row for row, line in enumerate(lines) if row > 20 and len(line.split()) > 1 and len(line) < 90]
        for row in sorted(dice.sample(usable, min(count, len(usable)))):
            line = lines[row]
            column = len(line) - len(line.lstrip()) + len(line.split()[0]) + 1
            before, after = "".join(lines[:row]) + line[:column], "".join(lines[row + 1 :])
            found.append(Place(str(file), before[-4000:], line[column:].rstrip("\n"), after[:1000]))
    return found


def spend_day(places: Sequence[Place], memory: Memory | None, model: dict[str, str]) -> tuple[Stats, int, int]:
    """A day's work: its sum, how many completions were accepted, and how many drafts the memory made."""
    engine, whole, accepted = build_engine(choose({**SETTINGS, **model}).config), Stats(), 0
    if memory is not None and engine.proposer is not None:
        engine.proposer.remember_with(memory)
    for place in places:
        request = CompletionRequest(
            prefix=place.prefix, suffix=place.suffix, path=place.path, shape="line", heal=True, scope=SCOPE
        )
        if memory is not None:
            wait_until_loaded(memory, place.path)
        (done,) = engine.complete([request])
        whole.add(done.stats)
        if done.text.split("\n")[0].rstrip() == place.truth.rstrip() and place.truth.strip():
            accepted += 1
            if memory is not None:
                outcome = Accepted(str(ROOT), place.path, "python", place.prefix[-2048:], done.text, place.suffix[:512])
                memory.accept(outcome).result()
    engine.close()
    return whole, accepted, memory.drafts if memory is not None else 0


def wait_until_loaded(memory: Memory, path: str) -> None:
    """A typist is slower than a file of accepted texts is read."""
    for _ in range(3):
        if memory.find(SCOPE, path) is not None:
            return
        memory.settle()


def main() -> None:
    """Prints a row for each day, with and without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--places", type=int, default=6)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    model = {"model": options.model, "dtype": options.dtype}
    files = sorted(ROOT.glob("*.py"), key=lambda file: -file.stat().st_size)[: options.files]
    days = [find_places(files, options.places, seed) for seed in (1, 2, 1)]
    print("| day | memory | places | accepted | rounds | tokens a round | drafts from memory |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        for day, places in enumerate(days, 1):
            for on in (False, True):
                memory = Memory(8) if on else None
                if memory is not None:
                    memory.scopes = frozenset({SCOPE})
                stats, accepted, drafts = spend_day(places, memory, model)
                rate = stats.committed / stats.rounds
                cells = (day, "on" if on else "off", len(places), accepted, stats.rounds, f"{rate:.3f}", drafts)
                print(f"| {' | '.join(map(str, cells))} |", flush=True)
                if memory is not None:
                    memory.close()


if __name__ == "__main__":
    main()
