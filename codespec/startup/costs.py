"""Measure a pair's cost table on this machine once, then load it from the user's cache folder.

`codespec.speculation.cost_model` defines the table.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from codespec.backends.language_model import LanguageModel
from codespec.backends.rows import Rows
from codespec.files import Kept
from codespec.speculation.cost_model import CostTable, ForwardCost, Point
from codespec.startup.timing import Shape, kept_file, measure, timed
from codespec.text.align import retokenize_batch

if TYPE_CHECKING:
    from codespec.backends.heads.drafting import HeadRunner

NO_HEADS: Mapping[str, HeadRunner] = {}
BUDGET = 1.5  # seconds for all models together
VERSION = 9  # of the measurement; others are not loaded
TRIES = 5
COLDER = 1.4e-4  # seconds by which a forward slows down after draft lookup and encoding
HANDLING = 6e-5  # seconds per draft for lookup, pricing and acceptance, without encoding
TEXT, DRAFT = b"    return self.value\n    def first(self, ", b"values):\n        for value in values:\n"


def price(
    target: LanguageModel,
    drafters: Mapping[str, LanguageModel],
    notes: MutableSequence[str],
    heads: Mapping[str, HeadRunner] = NO_HEADS,
) -> CostTable:
    """Return the kept table, or measure one and keep it. The models' slots must be free."""
    return kept_table(target, drafters, heads).get(partial(measure_table, target, drafters, BUDGET, heads), notes)


def kept_table(
    target: LanguageModel, drafters: Mapping[str, LanguageModel], heads: Mapping[str, HeadRunner] = NO_HEADS
) -> Kept[CostTable]:
    """Return the file for the table of a target with these drafters and heads.

    The time of a forward also depends on the shape of call, the slots and their size, and the captured graphs.
    """
    facts: list[object] = [head.config for head in heads.values()]
    for model in (target, *drafters.values()):
        slots = (model.cache.slots, model.cache.capacity) if model.cache else ()
        facts.append((*model.facts, *model.call_facts, slots))
    return Kept(kept_file("costs", VERSION, *facts), "cost table", CostTable.from_dict, CostTable.as_dict)


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
    from codespec.startup.heads import measure_head  # with torch, as the heads

    costs = {name: _cost(measure_head(head)) for name, head in heads.items()}
    whole = tuple(name for name, head in heads.items() if head.whole)
    return replace(table, drafters={**table.drafters, **costs}, whole=whole)


def table_of(
    target: LanguageModel, drafters: Mapping[str, LanguageModel], times: Sequence[Mapping[Shape, float]]
) -> CostTable:
    """Build a table from the measured forward times of target and drafters. Measures the cost of a draft."""
    first, *others = map(_cost, times)
    return CostTable(first, dict(zip(drafters, others, strict=True)), _draft_seconds(target))


def _cost(times: Mapping[Shape, float]) -> ForwardCost:
    return ForwardCost.from_points(Point(*shape, seconds) for shape, seconds in times.items())


def _draft_seconds(target: LanguageModel) -> float:
    """Return the seconds of one draft apart from forwards.

    It is encoded right after a forward, with cold CPU caches, which takes about three times as long as with warm ones.
    """
    times = []
    for _ in range(TRIES):
        target.step([Rows(0, 0, [1, 1])])
        times.append(timed(partial(retokenize_batch, target.tokenizer, [(TEXT, DRAFT)]), target.wait))
    target.rollback(0, 0)
    return median(times) + COLDER + HANDLING
