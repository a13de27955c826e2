"""Calibrate the contestants, and run passes over the prompts in which they take turns.

A pass is one repeat of one cell: every contestant decodes each workload, in an order that changes from workload to
workload, so that a busy minute of the machine affects all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from codespec.speculation.cost_model import CostTable
from codespec_lab.bench.decode.codespec_engine import FAMILY, OwnModels
from codespec_lab.bench.decode.contest import (
    FLOAT_DTYPES,
    Answer,
    Contestant,
    Family,
    PeerError,
    StepRounds,
    Task,
    Variant,
    Workload,
)
from codespec_lab.bench.harness import Deadline, in_turn
from codespec_lab.bench.steps import Prices, Step
from codespec_lab.corpus.gaps import is_loop

MANY = 4  # prompts at once in the calibration for every concurrency above one
HOPELESS = 1.5  # a variant slower than the fastest by this factor is not tried again
THREADS_GAIN = 1.1  # two threads must be faster than one by this factor, because they sometimes wait for each other
CALIBRATION_TOKENS = 8  # of each prompt
LATE = "there was no time to calibrate it: give more --minutes"


@dataclass(slots=True)
class Lineup:
    """The contestants that take part, and the result of calibration.

    `fastest` has, by contestant, the fastest variants for one prompt and for many; `paces` their seconds per token;
    `absent` the reasons of contestants that can't run.
    """

    families: Sequence[Family]
    fastest: dict[str, dict[str, Variant]] = field(default_factory=dict)
    paces: dict[tuple[str, str], float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def contestants(self) -> list[Contestant]:
        """Return the contestants that can run."""
        return [c for family in self.families for c in family.contestants if c.name not in self.absent]

    def taking(self, concurrency: int) -> list[Contestant]:
        """Return the contestants that can run `concurrency` prompts at once."""
        return [contestant for contestant in self.contestants if concurrency == 1 or contestant.batched]

    def variant(self, name: str, concurrency: int) -> Variant:
        """Return the variant of a contestant at a concurrency."""
        found = self.fastest[name]
        return found.get("one" if concurrency == 1 else "many") or found["one"]

    @property
    def float_dtype(self) -> str:
        """Return the float format to compare other programs' own formats with: the first that a contestant runs in, as
        codespec's texts in that format are needed anyway.
        """
        used = [self.variant(contestant.name, 1).dtype for contestant in self.contestants]
        return next((dtype for dtype in used if dtype in FLOAT_DTYPES), FLOAT_DTYPES[0])

    def plain(self, family: str) -> Contestant | None:
        """Return a family's contestant without drafts, or None if it can't run."""
        return next((found for found in self.contestants if found.family == family and found.plain), None)


def calibrate(
    lineup: Lineup, tasks: Sequence[Task], several: bool, deadline: Deadline
) -> Iterator[tuple[Contestant, list[dict[str, Any]]]]:
    """Find the fastest variant of each contestant that has none yet, also for many prompts if `several`, and yield each
    contestant with its measurements.

    A contestant whose variants all fail becomes absent, and so does one that the deadline leaves without a variant. A
    contestant that drafts is tried only in the number format and with the thread count that are the fastest without
    drafts.
    """
    for family in lineup.families:
        lineup.absent |= family.absent
        for contestant in [c for c in family.contestants if c.name not in lineup.absent]:
            sizes = {"one": 1, **({"many": MANY} if contestant.batched and several else {})}
            measured: list[dict[str, Any]] = []
            for size, count in sizes.items():
                if size not in lineup.fastest.get(contestant.name, {}) and contestant.name not in lineup.absent:
                    work = Workload(tuple(tasks[:count]), CALIBRATION_TOKENS)
                    measured += _calibrate(lineup, contestant, size, work, deadline)
            yield contestant, measured
        family.keep({v for c in family.contestants for v in lineup.fastest.get(c.name, {}).values()})


def _variants_to_try(lineup: Lineup, contestant: Contestant, size: str) -> Sequence[Variant]:
    """Return the variants with the format and threads of the family's fastest plain decoding, or all variants."""
    names = [c.name for c in lineup.contestants if c.family == contestant.family and c.plain]
    known = [name for name in names if size in lineup.fastest.get(name, {})]
    if contestant.plain or not known:
        return contestant.variants()
    fastest = lineup.fastest[min(known, key=lambda name: lineup.paces.get((name, size), 0.0))][size]
    return [v for v in contestant.variants() if (v.dtype, v.threads) == (fastest.dtype, fastest.threads)]


def _calibrate(
    lineup: Lineup, contestant: Contestant, size: str, work: Workload, deadline: Deadline
) -> list[dict[str, Any]]:
    """Try the variants twice in turn, the second time only those that may still be the fastest. Return the
    measurements.

    After the deadline only a lineup without any contestant is given another try.
    """
    paces: dict[Variant, float] = {}
    reason, seconds = "no variant was tried", 0.0
    for turn, variant in product(range(2), _variants_to_try(lineup, contestant, size)):
        if turn and paces.get(variant, float("inf")) > HOPELESS * min(paces.values(), default=0.0):
            continue
        if deadline.too_late(seconds) and (paces or lineup.fastest):
            reason = LATE
            break
        contestant.begin()
        begun = time.monotonic()
        try:
            pace = contestant.answer(work, variant).pace
        except PeerError as error:
            reason = str(error)
            continue
        seconds = time.monotonic() - begun
        paces[variant] = min(pace, paces.get(variant, pace))
    if not paces:
        if contestant.name not in lineup.fastest:  # else the variant for one prompt will do
            lineup.absent[contestant.name] = reason
        return []
    judged = {variant: pace * (THREADS_GAIN if variant.threads > 1 else 1.0) for variant, pace in paces.items()}
    fastest = min(judged, key=lambda variant: judged[variant])
    lineup.fastest.setdefault(contestant.name, {})[size] = fastest
    lineup.paces[contestant.name, size] = judged[fastest]
    return [{**v.as_dict(), "prompts": len(work.tasks), "tokens_per_second": 1 / p} for v, p in paces.items()]


class References:
    """Texts of the plain contestants, decoded one prompt at a time, that the other contestants must reproduce."""

    def __init__(self, lineup: Lineup, token_bytes: Sequence[bytes]) -> None:
        self._lineup = lineup
        self._token_bytes = token_bytes
        self._written: dict[tuple[str, str, float, int, int], tuple[int, ...]] = {}

    def equal(self, contestant: Contestant, variant: Variant, work: Workload, answer: Answer) -> int | None:
        """Return the number of texts that equal, id by id, plain decoding in the same number format; None if there is
        nothing to compare with.

        Another program's plain contestant is compared with codespec off, in a float format if its own format is not a
        float: another program's Q4_K_M rounds differently from codespec's native bits. Two programs that round
        differently may write different texts, but a wrong weight or prompt would show.
        """
        plain = self._lineup.plain(contestant.reference)
        if plain is None or (work.temperature > 0.0 and not contestant.keyed):
            return None
        if contestant is self._lineup.plain(contestant.family) and len(work.tasks) == 1:
            self._written.setdefault(self._key(contestant, variant, work.tasks[0], work), answer.ids[0])
        pairs = zip(work.tasks, answer.ids, strict=True)
        settings = replace(self._lineup.variant(plain.name, 1), dtype=self._dtype(contestant, variant, plain))
        return sum(self._alone(plain, settings, task, work) == ids for task, ids in pairs)

    def text(self, ids: Sequence[int]) -> bytes:
        """Return the text of target ids."""
        return b"".join(self._token_bytes[token] for token in ids)

    def _key(self, plain: Contestant, variant: Variant, task: Task, work: Workload) -> tuple[str, str, float, int, int]:
        return plain.family, variant.dtype, work.temperature, work.tokens, task.number

    def _dtype(self, contestant: Contestant, variant: Variant, plain: Contestant) -> str:
        """Return the number format of the plain decoding that a contestant's texts are compared with."""
        same = contestant.family == plain.family or variant.dtype in FLOAT_DTYPES
        return variant.dtype if same else self._lineup.float_dtype

    def _alone(self, plain: Contestant, settings: Variant, task: Task, work: Workload) -> tuple[int, ...]:
        key = self._key(plain, settings, task, work)
        if key not in self._written:
            self._written[key] = plain.answer(replace(work, tasks=(task,)), settings).ids[0]
        return self._written[key]


def run_pass(
    lineup: Lineup,
    references: References,
    models: OwnModels,
    repeat: int,
    workloads: Sequence[Workload],
    advance: Callable[[], None],
) -> dict[str, list[dict[str, Any]]]:
    """Decode all workloads with every contestant that can run them at this concurrency. Return records by name."""
    concurrency = workloads[0].at_once
    going = lineup.taking(concurrency)
    for contestant in going:
        contestant.begin()
    found: dict[str, list[dict[str, Any]]] = {contestant.name: [] for contestant in going}
    for number, work in enumerate(workloads):
        for contestant in in_turn(going, number + repeat):
            variant = lineup.variant(contestant.name, concurrency)
            record = _measure(contestant, variant, work, references, models)
            found[contestant.name].append({"work": number, "kind": work.kind, **record})
        advance()
    return found


def _measure(
    contestant: Contestant, variant: Variant, work: Workload, references: References, models: OwnModels
) -> dict[str, Any]:
    """Return one contestant's record of one workload; texts are compared outside the timed part."""
    try:
        answer = contestant.answer(work, variant)
    except PeerError as error:
        return {"failed": str(error)}
    record = {
        "prompts": len(work.tasks),
        "seconds": answer.seconds,
        "first_seconds": answer.first_seconds,
        "tokens": answer.tokens,
        "written": sum(map(len, answer.ids)),
        "ended": sum(ids[-1] in work.ends for ids in answer.ids),
        "rounds": answer.rounds,
        "drafted": answer.drafted,
        "accepted": answer.accepted,
        "split": answer.split,
        "equal": references.equal(contestant, variant, work, answer),
        "loops": sum(is_loop(references.text(ids)) for ids in answer.ids),
    }
    if contestant.family == FAMILY:
        record["predicted"] = predicted_seconds(answer.steps, models.table(variant))
    return record


def predicted_seconds(steps: Sequence[StepRounds], table: CostTable) -> float:
    """Return the table's cost of all steps; measured time beyond it is the part of a round that the table omits."""
    prices = Prices(table)
    return sum(prices.step(_work_of(step, table)) for step in steps)


def _work_of(step: StepRounds, table: CostTable) -> Step:
    units = [each.units for each in step.rounds if each.source in table.drafters]
    forwards = [(n, n) for turn in range(max(units, default=0)) if (n := sum(unit > turn for unit in units))]
    rows = sum(1 + each.drafted for each in step.rounds)
    drafts = sum(bool(each.source) for each in step.rounds)
    return Step(rows, max(1, len(step.rounds)), step.context, forwards, drafts)
