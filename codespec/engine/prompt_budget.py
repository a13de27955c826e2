"""How long a prompt that nothing is known of takes to read on this machine, and so how much of a document is read
before its first completion. Measured once, then read from the user's cache folder. Knows a model and seconds; knows no
requests.

The text depends on what of a document is read. So nothing counts here that speculation changes: neither the drafter,
for whose reading a part of the time is kept whatever it is, nor the policy, nor how many requests run at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, MutableSequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from codespec import json_store
from codespec.engine.fingerprint import fingerprint
from codespec.models.language_model import LanguageModel
from codespec.models.rows import Rows
from codespec.user_folders import cache_folder

KIND = 1  # how it is measured: what was measured in another way is not read
FEW, MANY, FAR = 64, 256, 1024  # tokens read at once where that takes long, and elsewhere; tokens before them
QUICK = 0.05  # seconds for FEW, below which MANY are measured
TRIES, PATIENCE = 5, 1.5  # visits of each point, and seconds after which there is no further one
ROUNDS = 8  # passes over the weights beside the prompt's: a chunk that is not full, and a line takes 5 to 10 rounds
DRAFTER = 0.1  # of the time, for what the drafter reads
LEAST_PROMPT = 256  # tokens, however long they take
STEP = 32  # tokens by which a budget is found


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds of reading `rows` tokens at once, the first ones of a text (`near`) and those behind `distance` others
    (`far`), and of a round of one row (`one`).
    """

    rows: int
    near: float
    far: float
    distance: int
    one: float

    def seconds(self, tokens: int) -> float:
        """Reading so many tokens of which none is known: each costs more the more stand before it."""
        slope = max(0.0, self.far - self.near) / self.distance
        return tokens / self.rows * (self.near + slope * tokens / 2)

    def answer(self, tokens: int) -> float:
        """Until a completion behind so many tokens is there, but for what the drafter reads."""
        return self.seconds(tokens) + ROUNDS * self.one

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reading:
        """Reads what `asdict` wrote. Raises ValueError, TypeError or KeyError for anything else."""
        seconds = [float(values[name]) for name in ("near", "far", "one")]
        rows, distance = int(values["rows"]), int(values["distance"])
        sound = all(math.isfinite(one) and one >= 0.0 for one in seconds)
        if not 1 <= min(rows, distance) <= max(rows, distance) < 1 << 31 or not sound:
            raise ValueError("it needs rows and seconds")
        return cls(rows, seconds[0], seconds[1], distance, seconds[2])


def prompt_budget(reading: Reading, first_answer_ms: int, context: int) -> int:
    """Tokens of a document's prompt whose answer is there in time, up to the whole context; it where no time is set."""
    if not first_answer_ms:
        return context
    time, tokens = first_answer_ms / 1000 * (1.0 - DRAFTER), LEAST_PROMPT
    while tokens < context and reading.answer(tokens + STEP) <= time:
        tokens += STEP
    return min(tokens, context)


def readings_folder() -> Path:
    """Where times are kept."""
    return cache_folder() / "reading"


def find_reading(model: LanguageModel, notes: MutableSequence[str]) -> Reading:
    """What is kept, or measured now and kept. What goes wrong with the file is noted, never fatal. Slot 0 must be
    free.
    """
    found = _read(model, notes)
    return found if found is not None else _keep(model, measure_reading(model), notes)


def measure_again(model: LanguageModel, notes: MutableSequence[str]) -> Reading:
    """Measures now and keeps the shorter times, for what is kept may be of a moment when the machine was busy. Not at
    each start, because the text depends on it. Slot 0 must be free.
    """
    before, reading = _read(model, notes), measure_reading(model)
    if before is not None and (before.rows, before.distance) == (reading.rows, reading.distance):
        times = {name: min(getattr(before, name), getattr(reading, name)) for name in ("near", "far", "one")}
        reading = replace(reading, **times)
    return _keep(model, reading, notes)


def _read(model: LanguageModel, notes: MutableSequence[str]) -> Reading | None:
    return json_store.load(_file(model), Reading.from_dict, "the kept time of reading", "it is measured again", notes)


def _keep(model: LanguageModel, reading: Reading, notes: MutableSequence[str]) -> Reading:
    json_store.keep(_file(model), asdict(reading), "the time of reading", "it is measured each time", notes)
    return reading


def _file(model: LanguageModel) -> Path:
    return readings_folder() / f"{_kept_name(model)}.json"


def measure_reading(model: LanguageModel) -> Reading:
    """Measures within about `PATIENCE` seconds, or longer where one visit takes as long. Slot 0 is empty then."""
    assert model.cache is not None
    _time(model, FEW, 0)  # kernels are compiled, threads wake
    rows = MANY if _time(model, FEW, 0) < QUICK else FEW  # a cache has whole blocks, which are larger
    distance = min(FAR, model.cache.capacity - rows)
    shapes = ((rows, 0), (rows, distance), (1, distance))
    visits: list[list[float]] = []
    began = time.perf_counter()
    while not visits or (len(visits) < TRIES and time.perf_counter() - began < PATIENCE):
        visits.append([_time(model, *shape) for shape in shapes])
    model.rollback(0, 0)
    near, far, one = map(min, zip(*visits, strict=True))
    return Reading(rows, near, far, distance, one)


def _time(model: LanguageModel, rows: int, context: int) -> float:
    model.admit(0, context + rows, context)
    began = time.perf_counter()
    float(model.forward([Rows(0, context, [1] * rows)])[0, 0])  # on a GPU, waits for it
    return time.perf_counter() - began


def _kept_name(model: LanguageModel) -> str:
    """Names what the time depends on beside the machine: the model, and how it computes."""
    spec = {**asdict(model.spec), "name": "", "notes": ()}
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else ""
    facts = [spec, str(model.device), device, str(model.dtype), model.exact, model.steps]
    return fingerprint(KIND, facts, model.calls.as_dict(), sorted(model.shapes.items()))
