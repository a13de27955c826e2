"""The cost table of a pair on this machine: measured once, then read from the user's cache folder. Knows models and
files; what the numbers mean is `codespec.control.costs`' business.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping, MutableSequence
from dataclasses import asdict

import torch
from codespec_grammars import ContextTracker

from codespec import __version__
from codespec.control import kept
from codespec.control.costs import CostTable, ForwardCost, Point
from codespec.models.language_model import LanguageModel, Rows
from codespec.models.timing import measure
from codespec.text.align import retokenize_batch
from codespec.text.tokenizer import TextTokenizer

BUDGET = 1.5  # seconds for all models together
CODE = b"    return self.value\n    def first(self, values):\n        for value in values:\n"


def price(target: LanguageModel, drafters: Mapping[str, LanguageModel], notes: MutableSequence[str]) -> CostTable:
    """The kept table, or one measured now and kept. What goes wrong with the file is noted, never fatal.

    The models' slots must be free.
    """
    file = kept.cache_folder() / "costs" / f"{fingerprint(target, *drafters.values())}.json"
    try:
        found = kept.read(file)
        if found is not None:
            return CostTable.from_dict(found)
    except (OSError, ValueError, TypeError, KeyError) as error:
        notes.append(f"the kept cost table can't be read ({error}): it is measured again")
    table = measure_table(target, drafters, BUDGET)
    try:
        kept.write(file, table.as_dict())
    except OSError as error:
        notes.append(f"the cost table can't be kept in {file.parent} ({error.strerror}): each start measures it again")
    return table


def measure_table(target: LanguageModel, drafters: Mapping[str, LanguageModel], budget: float) -> CostTable:
    """Measures within about `budget` seconds."""
    costs = [
        ForwardCost.from_points(Point(*shape, seconds) for shape, seconds in times.items())
        for times in measure([target, *drafters.values()], budget)
    ]
    named = dict(zip(drafters, costs[1:], strict=True))
    return CostTable(costs[0], named, _retokenizing(target.tokenizer), _looking(target))


def fingerprint(*models: LanguageModel) -> str:
    """Names what a table depends on: the machine, torch and its threads, each model's size, number format, slots, mode,
    and the device with the steps that it has graphs for, be they whole or in parts.
    """
    facts: list[object] = [__version__, platform.node(), platform.machine(), torch.__version__, torch.get_num_threads()]
    for model in models:
        spec = {**asdict(model.spec), "name": "", "notes": ()}
        slots = (model.cache.slots, model.cache.capacity) if model.cache else ()
        mode = "exact" if model.exact else "fast"
        facts += [spec, _device_name(model.device), model.steps, mode, model.bucket_rows, model.graphs]
        facts += [sorted(model.shapes.items()), slots]
    return hashlib.blake2b(json.dumps(facts, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()


def _device_name(device: torch.device) -> str:
    """A GPU by its make: another one may stand in its place tomorrow."""
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def _retokenizing(tokenizer: TextTokenizer) -> float:
    """Seconds to encode one draft."""
    return min(_timed(lambda: retokenize_batch(tokenizer, [(CODE[:48], CODE[48:])])) for _ in range(8))


def _looking(target: LanguageModel) -> float:
    """Seconds to find the context at a tip a few bytes further on, after a forward has emptied the machine's caches."""
    tracker = ContextTracker("python", CODE * 40)

    def look() -> None:
        tracker.advance(b"    x = f(y)\n")
        tracker.context()

    times = []
    for _ in range(5):
        target.forward([Rows(0, 0, [1, 1])])
        times.append(_timed(look))
    target.rollback(0, 0)
    return sorted(times)[2]


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
