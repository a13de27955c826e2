"""Choose the number of CPU threads on this machine: measure once, then load it from the user's cache folder."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, MutableSequence
from typing import Any

import torch

from codespec.json_store import Kept
from codespec.models.language_model import LanguageModel
from codespec.startup.fingerprint import kept_file, model_facts
from codespec.startup.timing import SHORT, Shape, empty_slots, time_forward
from codespec.store.processor import processor

VERSION = 1  # of the measurement; others are not loaded
TURN = 5  # forwards with one thread count before the next takes its turn
CLEARLY = 0.9
_CHOSEN: list[int] = []  # thread count chosen in this process


def find_threads(model: LanguageModel, notes: MutableSequence[str]) -> int:
    """Return the kept number of CPU threads for this model, or measure and keep it.

    The number is process-wide, so the first engine with automatic threads decides for later ones. Slots must be free.
    """
    if not _CHOSEN:
        most = _most_threads()
        _CHOSEN.append(1 if most == 1 else _kept(model, most).get(lambda: choose_threads(model, most), notes))
    return _CHOSEN[0]


def _kept(model: LanguageModel, most: int) -> Kept[int]:
    def parse(content: Mapping[str, Any]) -> int:
        if (threads := int(content["threads"])) not in range(1, most + 1):
            raise ValueError(f"{threads} is not from 1 to {most}")
        return threads

    file = kept_file("threads", VERSION, most, model_facts(model))
    return Kept(file, "number of threads", parse, lambda threads: {"threads": threads})


def _most_threads() -> int:
    """Return the number of physical cores, or OMP_NUM_THREADS if lower: it is set on shared machines."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(processor().cores, int(limit)) if limit.isdecimal() and int(limit) else processor().cores


def choose_threads(model: LanguageModel, most: int, budget: float = 1.0) -> int:
    """Return the least thread count, doubling from 1 to `most`, that no larger one clearly beats.

    The criterion is the 95th percentile of a small verification: on shared cores several threads often stall. Takes
    about `budget` seconds in turns of a few forwards, at least one turn per count. Leaves the slots empty.
    """
    counts = sorted({*(1 << power for power in range(most.bit_length())), most})
    times: dict[int, list[float]] = {count: [] for count in counts}
    rows = min(8, model.spec.max_length - 1)
    verify: Shape = (rows, 1, min(SHORT, model.spec.max_length - rows))
    before, began = torch.get_num_threads(), time.perf_counter()
    while not times[most] or time.perf_counter() - began < budget:
        for threads, found in times.items():
            torch.set_num_threads(threads)
            time_forward(model, verify)  # the first forward wakes the threads
            found += [time_forward(model, verify) for _ in range(TURN)]
    torch.set_num_threads(before)
    empty_slots(model)
    late = {threads: sorted(found)[int(0.95 * len(found))] for threads, found in times.items()}
    best = 1
    for threads in counts:
        if late[threads] < CLEARLY * late[best]:
            best = threads
    return best
