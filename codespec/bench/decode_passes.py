"""The contest itself: calibration, and passes over the prompts in which the contestants take turns.

A pass is one repeat of one cell: for each batch of prompts everybody decodes it, in an order that turns from batch to
batch, so that a busy minute of the machine falls on nobody alone. Knows contestants and their answers; knows no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from codespec.bench.decode_bound import Played
from codespec.bench.decode_grid import Cell, Grid, takes
from codespec.bench.peers.contest import Answer, Contestant, Family, PeerError, Task, Variant, Work
from codespec.bench.peers.ours import FAMILY, OFF, OwnModels
from codespec.models.language_model import Rows
from codespec.training.loops import is_loop

MANY = 4  # prompts that stand for every concurrency above one when variants are compared
HOPELESS = 1.5  # times the fastest: not tried again
STALLS = 1.1  # times as fast must two threads be: now and then they wait for each other, ten times and more
UNBATCHED = 4  # prompts of a group's first batch, at concurrency above one, for those who take one after the other


@dataclass(slots=True)
class Lineup:
    """Who takes part: families, of them those in `names` (all, if there are none); by name the variants that were the
    fastest for one prompt and for many, and why someone can't run.
    """

    families: Sequence[Family]
    names: Sequence[str] = ()
    fastest: dict[str, dict[str, Variant]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def contestants(self) -> list[Contestant]:
        """Those that can run."""
        everybody = [contestant for family in self.families for contestant in family.contestants]
        wanted = [contestant for contestant in everybody if not self.names or contestant.name in self.names]
        return [contestant for contestant in wanted if contestant.name not in self.absent]

    def variant(self, name: str, concurrency: int) -> Variant:
        """How a contestant is run at a concurrency."""
        found = self.fastest[name]
        return found.get("one" if concurrency == 1 else "many") or found["one"]

    def plain(self, family: str) -> Contestant | None:
        """The contestant of a family that does not guess, if it can run."""
        return next((found for found in self.contestants if found.family == family and found.plain), None)


def calibrate(
    lineup: Lineup, tasks: Sequence[Task], grid: Grid, advance: Callable[[], None]
) -> dict[str, list[dict[str, Any]]]:
    """Finds everybody's fastest variant; those that fail in all of them become absent. Returns what was measured."""
    found: dict[str, list[dict[str, Any]]] = {}
    for family in lineup.families:
        lineup.absent |= {name: why for name, why in family.absent.items() if not lineup.names or name in lineup.names}
        for contestant in [c for c in family.contestants if c in lineup.contestants]:
            found[contestant.name] = []
            many = contestant.batched and any(
                grid.takes_part(contestant.name, c) for c in grid.cells if c.concurrency > 1
            )
            for size, count in {"one": 1, **({"many": MANY} if many else {})}.items():
                work = Work(tuple(tasks[:count]), grid.calibration)
                follow = grid.follow or contestant.family == FAMILY  # what is one program differs by its drafts only
                variants = _wanted(lineup, contestant, size) if follow else contestant.variants()
                _calibrate(lineup, contestant, variants, (size, work), found[contestant.name])
            advance()
        chosen = {v for c in family.contestants for v in lineup.fastest.get(c.name, {}).values()}
        family.keep(chosen)
    return found


def _wanted(lineup: Lineup, contestant: Contestant, size: str) -> Sequence[Variant]:
    """The variants with the number format and threads of the fastest plain decoding of the family, or all."""
    plain = lineup.plain(contestant.family)
    fastest = lineup.fastest.get(plain.name, {}).get(size) if plain else None
    if fastest is None or contestant.plain:
        return contestant.variants()
    return [v for v in contestant.variants() if (v.dtype, v.threads) == (fastest.dtype, fastest.threads)]


def _calibrate(
    lineup: Lineup,
    contestant: Contestant,
    variants: Sequence[Variant],
    sized: tuple[str, Work],
    told: list[dict[str, Any]],
) -> None:
    """Tries the variants twice in turn, the second time only those that may still win."""
    paces: dict[Variant, float] = {}
    reason = "it has no variant"
    size, work = sized
    for turn in range(2):
        for variant in variants:
            if turn and paces.get(variant, float("inf")) > HOPELESS * min(paces.values(), default=0.0):
                continue
            contestant.begin()
            try:
                pace = contestant.answer(work, variant).pace
            except PeerError as error:
                reason = str(error)
                continue
            paces[variant] = min(pace, paces.get(variant, pace))
    if not paces:
        lineup.absent[contestant.name] = reason
        return
    told += [{**v.as_dict(), "prompts": len(work.tasks), "tokens_per_second": 1 / p} for v, p in paces.items()]
    judged = {variant: pace * (STALLS if variant.threads > 1 else 1.0) for variant, pace in paces.items()}
    lineup.fastest.setdefault(contestant.name, {})[size] = min(judged, key=lambda variant: judged[variant])


class References:
    """What each plain contestant writes, one prompt at a time: what the others of its family must write too."""

    def __init__(self, lineup: Lineup, models: OwnModels, token_bytes: Sequence[bytes]) -> None:
        self._lineup = lineup
        self._models = models
        self._token_bytes = token_bytes
        self._written: dict[tuple[str, str, float, int, int], tuple[int, ...]] = {}

    def equal(self, contestant: Contestant, variant: Variant, work: Work, answer: Answer) -> int | None:
        """How many texts are, id by id, the plain ones in the same number format; None where that can't be asked.

        A family's own plain contestant is compared with codespec off: no proof of anything between two programs that
        round differently, but a wrong weight or prompt would show.
        """
        plain = self._lineup.plain(FAMILY if contestant.plain else contestant.family)
        if plain is None or (work.temperature > 0.0 and not contestant.keyed):
            return None
        if contestant is self._lineup.plain(contestant.family) and len(work.tasks) == 1:
            self._written.setdefault(self._key(contestant, variant, work.tasks[0], work), answer.ids[0])
        pairs = zip(work.tasks, answer.ids, strict=True)
        return sum(self._alone(plain, variant, task, work) == ids for task, ids in pairs)

    def text(self, ids: Sequence[int]) -> bytes:
        """What target ids spell."""
        return b"".join(self._token_bytes[token] for token in ids)

    def nats(self, work: Work, answer: Answer) -> float:
        """The mean log-probability, in nats a token, that the target gives sampled texts at their temperature."""
        target = self._models.pair(self._lineup.variant(OFF, 1)).target
        total = 0.0
        for task, ids in zip(work.tasks, answer.ids, strict=True):
            target.admit(0, len(task.ids) + len(ids))
            rows = Rows(0, 0, [*task.ids, *ids[:-1]], keep=len(ids))
            scores = (target.forward([rows]) / work.temperature).log_softmax(dim=1)
            total += scores.gather(1, torch.tensor(ids, device=scores.device)[:, None]).mean().item()
            target.rollback(0, 0)
        return total / len(work.tasks)

    def _key(self, plain: Contestant, variant: Variant, task: Task, work: Work) -> tuple[str, str, float, int, int]:
        return plain.family, variant.dtype, work.temperature, work.tokens, task.number

    def _alone(self, plain: Contestant, variant: Variant, task: Task, work: Work) -> tuple[int, ...]:
        key = self._key(plain, variant, task, work)
        if key not in self._written:
            alone = replace(work, tasks=(task,))
            settings = replace(self._lineup.variant(plain.name, 1), dtype=variant.dtype)
            self._written[key] = plain.answer(alone, settings).ids[0]
        return self._written[key]


def run_pass(
    lineup: Lineup,
    references: References,
    models: OwnModels,
    cell: Cell,
    repeat: int,
    work: Sequence[Work],
    names: Sequence[str],
    advance: Callable[[], None],
) -> dict[str, list[dict[str, Any]]]:
    """Everybody named decodes the batches that are theirs in this repeat; returns records by name."""
    going = [contestant for contestant in lineup.contestants if contestant.name in names]
    for contestant in going:
        contestant.begin()
    found: dict[str, list[dict[str, Any]]] = {contestant.name: [] for contestant in going}
    counts, done = Counter(batch.tasks[0].group for batch in work), Counter[str]()
    for number, batch in enumerate(work):
        group = batch.tasks[0].group
        taking = [c for c in going if takes(c, group, done[group], counts[group], repeat)]
        turn = (number + repeat) % max(1, len(taking))
        for contestant in [*taking[turn:], *taking[:turn]]:
            own = batch
            if cell.concurrency > 1 and not contestant.batched:
                if done[group]:
                    continue
                own = replace(batch, tasks=batch.tasks[:UNBATCHED])
            variant = lineup.variant(contestant.name, cell.concurrency)
            record = _measure(contestant, variant, own, references, models)
            found[contestant.name].append({"batch": number, "group": group, **record})
        done[group] += 1
        advance()
    return found


def _measure(
    contestant: Contestant, variant: Variant, work: Work, references: References, models: OwnModels
) -> dict[str, Any]:
    """One contestant's record of one batch; the clock has stopped when texts are compared."""
    try:
        answer = contestant.answer(work, variant)
    except PeerError as error:
        return {"failed": str(error)}
    record = {
        "prompts": len(work.tasks),
        "seconds": answer.seconds,
        "first_seconds": answer.first_seconds,
        "tokens": answer.tokens,
        "rounds": answer.rounds,
        "drafted": answer.drafted,
        "accepted": answer.accepted,
        "split": answer.split,
        "equal": references.equal(contestant, variant, work, answer),
        "loops": sum(is_loop(references.text(ids)) for ids in answer.ids),
    }
    if work.temperature > 0.0:
        record["nats"] = references.nats(work, answer)
    if contestant.family == FAMILY:
        record["played"] = Played.of(answer.steps, models.table(variant)).as_dict()
    return record
