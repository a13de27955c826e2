"""Limit an editor prompt so that the first completion of a new document arrives in time.

Measures once how long this machine takes to prefill an uncached prompt, and keeps the result for later starts.

The prompt length affects the generated text, so nothing that speculation changes may enter here: not the drafter (a
fixed share of the time is reserved for its prefill), not the policy, not the batch size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableSequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from codespec.backends.language_model import LanguageModel
from codespec.files import Kept
from codespec.startup.timing import kept_file, time_rows, turns

VERSION = 1  # of the measurement; others are not loaded
FEW, MANY, FAR = 64, 256, 1024  # prefill chunk on slow and on fast machines; context before it; all in tokens
QUICK = 0.05  # seconds: if FEW take less, MANY are measured
TRIES, PATIENCE = 5, 1.5  # maximum of runs per point; seconds after which no further run starts
ROUNDS = 8  # forwards in addition to full prefill chunks: a partial chunk, and 5 to 10 rounds for a line
DRAFTER = 0.1  # share of the time reserved for the drafter's prefill
MIN_PROMPT = 256  # tokens, regardless of the time they take
STEP = 32  # tokens; granularity of the budget


@dataclass(frozen=True, slots=True)
class ReadingSpeed:
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
    def from_dict(cls, values: Mapping[str, Any]) -> ReadingSpeed:
        """Parse the output of `asdict`. Raises ValueError, TypeError or KeyError for invalid values."""
        seconds = [float(values[name]) for name in ("near", "far", "one")]
        rows, distance = int(values["rows"]), int(values["distance"])
        sound = all(math.isfinite(one) and one >= 0.0 for one in seconds)
        if not 1 <= min(rows, distance) <= max(rows, distance) < 1 << 31 or not sound:
            raise ValueError("it needs rows and seconds")
        return cls(rows, seconds[0], seconds[1], distance, seconds[2])


@lru_cache(64)
def prompt_budget(reading: ReadingSpeed, first_answer_ms: float, context: int) -> int:
    """Return the largest prompt, in tokens, whose completion arrives within `first_answer_ms`, up to `context`.

    Returns `context` if `first_answer_ms` is 0.
    """
    if not first_answer_ms:
        return context
    time, tokens = first_answer_ms / 1000 * (1.0 - DRAFTER), MIN_PROMPT
    while tokens < context and reading.answer(tokens + STEP) <= time:
        tokens += STEP
    return min(tokens, context)


def find_reading(model: LanguageModel, notes: MutableSequence[str]) -> ReadingSpeed:
    """Return the kept measurement, or measure now and keep it. Slot 0 must be free."""
    return _kept(model).get(lambda: measure_reading(model), notes)


def measure_again(model: LanguageModel, notes: MutableSequence[str]) -> ReadingSpeed:
    """Measure now and keep the minimum of the old and new times, in case the machine was busy before.

    Not done at every start, because the generated text depends on the result. Slot 0 must be free.
    """
    kept, reading = _kept(model), measure_reading(model)
    before = kept.load(notes)
    if before is not None and (before.rows, before.distance) == (reading.rows, reading.distance):
        times = {name: min(getattr(before, name), getattr(reading, name)) for name in ("near", "far", "one")}
        reading = replace(reading, **times)
    kept.save(reading, notes)
    return reading


def _kept(model: LanguageModel) -> Kept[ReadingSpeed]:
    """Return the file for the measurement. It is the same for any number and size of slots."""
    file = kept_file("reading", VERSION, model.facts, model.call_facts)
    return Kept(file, "time of reading", ReadingSpeed.from_dict, asdict)


def measure_reading(model: LanguageModel) -> ReadingSpeed:
    """Measure in about `PATIENCE` seconds, or longer if one run takes longer. Leaves slot 0 empty."""
    assert model.cache is not None
    time_rows(model, [FEW], 0, keep=1)  # warm-up: compile kernels, start threads
    rows = MANY if time_rows(model, [FEW], 0, keep=1) < QUICK else FEW  # fits, because cache blocks are larger
    distance = min(FAR, model.cache.capacity - rows)
    shapes = ((rows, 0), (rows, distance), (1, distance))
    visits = [[time_rows(model, [count], start, keep=1) for count, start in shapes] for _ in turns(PATIENCE, TRIES)]
    model.rollback(0, 0)
    near, far, one = map(min, zip(*visits, strict=True))
    return ReadingSpeed(rows, near, far, distance, one)
