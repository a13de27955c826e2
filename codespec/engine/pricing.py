"""The cost table of a pair on this machine: measured once, then read from the user's cache folder. Knows models and
files; what the numbers mean is `codespec.speculation.cost_model`' business.
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
TABLE = 8  # how tables are measured: one of another kind is not read
TRIES = 5
MANY = 8  # drafts of one step
COLDER = 1.4e-4  # seconds by which a forward is slower after drafts were found and encoded
HANDLING = 6e-5  # seconds a draft takes beside being encoded: finding, weighing and judging it
DRAFTS, BESIDE = (1, 2, 3, 4), 4  # rows of drafts, and how many sequences have none
PATIENCE = 0.3  # seconds after which what differing drafts cost is not tried again
CODE = b"    return self.value\n    def first(self, values):\n        for value in values:\n"


def price(
    target: LanguageModel,
    drafters: Mapping[str, LanguageModel],
    notes: MutableSequence[str],
    heads: Mapping[str, HeadRunner] = NO_HEADS,
) -> CostTable:
    """The kept table, or one measured now and kept. What goes wrong with the file is noted, never fatal.

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
    """Where a pair's table is kept."""
    return cache_folder() / "costs" / f"{fingerprint(target, *drafters.values(), heads=heads)}.json"


def keep_table(file: Path, notes: MutableSequence[str], table: CostTable) -> None:
    """Keeps a table for the next start; that it can't is noted."""
    json_store.keep(file, table.as_dict(), "the cost table", "each start measures it again", notes)


def measure_table(
    target: LanguageModel,
    drafters: Mapping[str, LanguageModel],
    budget: float,
    heads: Mapping[str, HeadRunner] = NO_HEADS,
) -> CostTable:
    """Measures within about `budget` seconds, and a little for each head."""
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
    """A table of the target's and the drafters' forwards, which took so long; what else a draft costs is measured."""
    costs = [ForwardCost.from_points(Point(*shape, seconds) for shape, seconds in taken.items()) for taken in times]
    named = dict(zip(drafters, costs[1:], strict=True))
    spelling = Curve.fit({1: _spelling(target, 1), MANY: _spelling(target, MANY) + MANY * _differing(target)})
    return CostTable(costs[0], named, spelling)


def fingerprint(*models: LanguageModel, heads: Mapping[str, HeadRunner] = NO_HEADS) -> str:
    """Names what a table depends on: the machine, torch and its threads, each model's size, number format, slots, mode,
    and the device with the steps that it has graphs for, be they whole or in parts; and the heads' sizes.
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
    """A GPU by its make: another one may stand in its place tomorrow."""
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def _spelling(target: LanguageModel, drafts: int) -> float:
    """Seconds that so many drafts of a step cost beside forwards."""
    pairs = [(CODE[n : n + 40], CODE[n + 40 :]) for n in range(drafts)]
    return _cold(target, lambda: retokenize_batch(target.tokenizer, pairs)) + COLDER + drafts * HANDLING


def _differing(target: LanguageModel) -> float:
    """Seconds that several drafts of a step take more than one with all their rows: attention takes each apart."""
    assert target.cache is not None
    if target.steps == "device" or target.cache.slots < len(DRAFTS) + BESIDE:
        return 0.0  # one kernel attends to all rows there
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
    """Seconds of an action right after a forward, which has emptied the machine's caches: three times of a hot one."""
    times = []
    for _ in range(TRIES):
        target.forward([Rows(0, 0, [1, 1])])
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    target.rollback(0, 0)
    return median(times)
