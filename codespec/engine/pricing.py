"""Measure a pair's cost table on this machine once, then load it from the user's cache folder.

`codespec.speculation.cost_model` defines the table.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import torch

from codespec import __version__, json_store
from codespec.models.heads.drafting import HeadRunner
from codespec.models.heads.timing import measure_head
from codespec.models.language_model import LanguageModel
from codespec.models.processor import processor
from codespec.models.rows import Rows
from codespec.models.timing import SHORT, Shape, measure, time_rows
from codespec.speculation.cost_model import CostTable, Curve, ForwardCost, Point
from codespec.text.align import retokenize_batch
from codespec.user_folders import cache_folder

NO_HEADS: Mapping[str, HeadRunner] = {}
BUDGET = 1.5  # seconds for all models together
TABLE = 8  # version of the measurement; other versions are not loaded
TRIES = 5
MANY = 8  # drafts in one step
COLDER = 1.4e-4  # seconds by which a forward slows down after draft lookup and encoding
HANDLING = 6e-5  # seconds per draft for lookup, pricing and acceptance, without encoding
DRAFTS, BESIDE = (1, 2, 3, 4), 4  # rows of the drafts, and the number of sequences without one
PATIENCE = 0.3  # seconds after which _differing takes no further measurement
CODE = b"    return self.value\n    def first(self, values):\n        for value in values:\n"


def price(
    target: LanguageModel,
    drafters: Mapping[str, LanguageModel],
    notes: MutableSequence[str],
    heads: Mapping[str, HeadRunner] = NO_HEADS,
) -> CostTable:
    """Return the cached table, or measure one and cache it. File errors are noted, never fatal.

    The models' slots must be free.
    """
    file = table_file(target, drafters, heads)
    found = json_store.load(file, CostTable.from_dict, "the kept cost table", "it is measured again", notes)
    if found is not None:
        return found
    table = measure_table(target, drafters, BUDGET, heads)
    keep_table(file, notes, table)
    return table


def table_file(
    target: LanguageModel, drafters: Mapping[str, LanguageModel], heads: Mapping[str, HeadRunner] = NO_HEADS
) -> Path:
    """Return the path of a pair's table."""
    return cache_folder() / "costs" / f"{fingerprint(target, *drafters.values(), heads=heads)}.json"


def keep_table(file: Path, notes: MutableSequence[str], table: CostTable) -> None:
    """Save a table for the next start. A failure is noted."""
    json_store.keep(file, table.as_dict(), "the cost table", "each start measures it again", notes)


def measure_table(
    target: LanguageModel,
    drafters: Mapping[str, LanguageModel],
    budget: float,
    heads: Mapping[str, HeadRunner] = NO_HEADS,
) -> CostTable:
    """Measure a table in about `budget` seconds, plus a little for each head."""
    table = table_of(target, drafters, measure([target, *drafters.values()], budget))
    if not heads:
        return table
    costs = {
        name: ForwardCost.from_points(Point(*shape, seconds) for shape, seconds in measure_head(head).items())
        for name, head in heads.items()
    }
    whole = tuple(name for name, head in heads.items() if head.whole)
    return replace(table, drafters={**table.drafters, **costs}, whole=whole)


def table_of(
    target: LanguageModel, drafters: Mapping[str, LanguageModel], times: Sequence[Mapping[Shape, float]]
) -> CostTable:
    """Build a table from the measured forward times of target and drafters. Measures the other draft costs."""
    costs = [ForwardCost.from_points(Point(*shape, seconds) for shape, seconds in taken.items()) for taken in times]
    named = dict(zip(drafters, costs[1:], strict=True))
    spelling = Curve.fit({1: _spelling(target, 1), MANY: _spelling(target, MANY) + MANY * _differing(target)})
    return CostTable(costs[0], named, spelling)


def fingerprint(*models: LanguageModel, heads: Mapping[str, HeadRunner] = NO_HEADS) -> str:
    """Return a fingerprint of everything that a table depends on.

    It covers the machine, torch and its threads; each model's size, dtype, slots, mode, device and graphs (captured
    whole or piecewise); and the heads' sizes.
    """
    facts: list[object] = [
        TABLE,
        __version__,
        platform.node(),
        processor().label,
        torch.__version__,
        torch.get_num_threads(),
    ]
    for model in models:
        spec = {**asdict(model.spec), "name": "", "notes": ()}
        slots = (model.cache.slots, model.cache.capacity) if model.cache else ()
        mode = "exact" if model.exact else "fast"
        facts += [spec, _device_name(model.device), model.steps, mode, model.bucket_rows, model.graphs]
        facts += [model.calls.as_dict()]
        facts += [sorted(model.shapes.items()), slots]
    facts += [{**asdict(head.config), "target": ""} for head in heads.values()]
    return hashlib.blake2b(json.dumps(facts, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()


def _device_name(device: torch.device) -> str:
    """Return the device's name, with a GPU's model, because the GPU may be replaced."""
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def _spelling(target: LanguageModel, drafts: int) -> float:
    """Return the seconds that this number of drafts costs in a step, besides forwards."""
    pairs = [(CODE[n : n + 40], CODE[n + 40 :]) for n in range(drafts)]
    return _cold(target, lambda: retokenize_batch(target.tokenizer, pairs)) + COLDER + drafts * HANDLING


def _differing(target: LanguageModel) -> float:
    """Return the extra seconds per draft if a step has several drafts instead of one with the same rows.

    Attention runs separately for each draft length.
    """
    assert target.cache is not None
    if target.steps == "device" or target.cache.slots < len(DRAFTS) + BESIDE:
        return 0.0  # one kernel computes attention for all rows
    several = [*(1 + rows for rows in DRAFTS), *[1] * BESIDE]
    one = [1 + sum(DRAFTS), *[1] * (len(several) - 1)]
    times: list[float] = []
    began = time.perf_counter()
    while not times or (len(times) < TRIES and time.perf_counter() - began < PATIENCE):
        times.append(time_rows(target, several, SHORT) - time_rows(target, one, SHORT))
    for slot in range(len(several)):
        target.rollback(slot, 0)
    return max(0.0, median(times) / (len(DRAFTS) - 1))


def _cold(target: LanguageModel, action: Callable[[], object]) -> float:
    """Return the seconds of an action right after a forward, with cold CPU caches: about three times the warm time."""
    times = []
    for _ in range(TRIES):
        target.forward([Rows(0, 0, [1, 1])])
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    target.rollback(0, 0)
    return median(times)
