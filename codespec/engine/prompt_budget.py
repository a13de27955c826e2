"""Limit an editor prompt so that the first completion of a new document arrives in time.

Measures once how long this machine takes to prefill an uncached prompt, then loads the result from the user's cache
folder.

The prompt length affects the generated text, so nothing that speculation changes may enter here: not the drafter (a
fixed share of the time is reserved for its prefill), not the policy, not the batch size.
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

KIND = 1  # version of the measurement; other versions are not loaded
FEW, MANY, FAR = 64, 256, 1024  # prefill chunk on slow and on fast machines; context before it; all in tokens
QUICK = 0.05  # seconds: if FEW take less, MANY are measured
TRIES, PATIENCE = 5, 1.5  # maximum of runs per point; seconds after which no further run starts
ROUNDS = 8  # forwards besides full prefill chunks: a partial chunk, and 5 to 10 rounds for a line
DRAFTER = 0.1  # share of the time reserved for the drafter's prefill
LEAST_PROMPT = 256  # tokens, regardless of the time they take
STEP = 32  # tokens; granularity of the budget


@dataclass(frozen=True, slots=True)
class Reading:
    """Prefill times in seconds.

    `near` is the time to prefill `rows` tokens at the start of a text, `far` after `distance` other tokens. `one` is
    the time of a one-row round.
    """

    rows: int
    near: float
    far: float
    distance: int
    one: float

    def seconds(self, tokens: int) -> float:
        """Return the seconds to prefill this many uncached tokens. The cost of a token grows with its position."""
        slope = max(0.0, self.far - self.near) / self.distance
        return tokens / self.rows * (self.near + slope * tokens / 2)

    def answer(self, tokens: int) -> float:
        """Return the time to first completion for a prompt of this length, without the drafter's prefill."""
        return self.seconds(tokens) + ROUNDS * self.one

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reading:
        """Parse the output of `asdict`. Raises ValueError, TypeError or KeyError for invalid values."""
        seconds = [float(values[name]) for name in ("near", "far", "one")]
        rows, distance = int(values["rows"]), int(values["distance"])
        sound = all(math.isfinite(one) and one >= 0.0 for one in seconds)
        if not 1 <= min(rows, distance) <= max(rows, distance) < 1 << 31 or not sound:
            raise ValueError("it needs rows and seconds")
        return cls(rows, seconds[0], seconds[1], distance, seconds[2])


def prompt_budget(reading: Reading, first_answer_ms: int, context: int) -> int:
    """Return the largest prompt, in tokens, whose completion arrives within `first_answer_ms`, up to `context`.

    Returns `context` if `first_answer_ms` is 0.
    """
    if not first_answer_ms:
        return context
    time, tokens = first_answer_ms / 1000 * (1.0 - DRAFTER), LEAST_PROMPT
    while tokens < context and reading.answer(tokens + STEP) <= time:
        tokens += STEP
    return min(tokens, context)


def readings_folder() -> Path:
    """Return the folder of the cached measurements."""
    return cache_folder() / "reading"


def find_reading(model: LanguageModel, notes: MutableSequence[str]) -> Reading:
    """Return the cached measurement, or measure now and cache it. File errors are noted, never fatal.

    Slot 0 must be free.
    """
    found = _read(model, notes)
    return found if found is not None else _keep(model, measure_reading(model), notes)


def measure_again(model: LanguageModel, notes: MutableSequence[str]) -> Reading:
    """Measure now and keep the minimum of the old and new times, in case the machine was busy before.

    Not done at every start, because the generated text depends on the result. Slot 0 must be free.
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
    """Measure in about `PATIENCE` seconds, or longer if one run takes longer. Leaves slot 0 empty."""
    assert model.cache is not None
    _time(model, FEW, 0)  # warm-up: compile kernels, start threads
    rows = MANY if _time(model, FEW, 0) < QUICK else FEW  # fits, because cache blocks are larger
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
    float(model.forward([Rows(0, context, [1] * rows)])[0, 0])  # synchronizes on a GPU
    return time.perf_counter() - began


def _kept_name(model: LanguageModel) -> str:
    """Return the cache key: the machine, the model and how it computes."""
    spec = {**asdict(model.spec), "name": "", "notes": ()}
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else ""
    facts = [spec, str(model.device), device, str(model.dtype), model.exact, model.steps]
    return fingerprint(KIND, facts, model.calls.as_dict(), sorted(model.shapes.items()))
