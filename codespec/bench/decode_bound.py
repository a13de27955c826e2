"""The speed that a cost table and the measured acceptance allow, and the speed that the table gives the rounds played.

Both leave out what codespec itself costs beyond the table, so their distance to the clock says what is left to gain:
against the bound by choosing better lengths and by a leaner round, against the prediction by the round alone. The bound
is that of one length a proposer, so it asks for acceptance that was counted at fixed lengths: a policy that drafts far
only where it is sure tries far positions there only. Who chooses lengths by confidence may pass it. Knows counts and
tables; knows no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from codespec.bench.peers.contest import PlayedStep
from codespec.bench.pricing import Prices
from codespec.bench.recording import LONGEST
from codespec.bench.tape import Step
from codespec.control.costs import CostTable


@dataclass(slots=True)
class Kept:
    """Rounds in which one proposer drafted ("" for none). By position: how many drafts had a token there (`drafted`),
    and how many were `right` up to it; `units` of the proposer's for all of the target's tokens.
    """

    rounds: int = 0
    drafted: list[int] = field(default_factory=lambda: [0] * LONGEST)
    right: list[int] = field(default_factory=lambda: [0] * LONGEST)
    units: int = 0

    def add(self, other: Kept) -> None:
        """Takes in the rounds of another."""
        self.rounds += other.rounds
        self.units += other.units
        self.drafted = [a + b for a, b in zip(self.drafted, other.drafted, strict=True)]
        self.right = [a + b for a, b in zip(self.right, other.right, strict=True)]


def count_kept(steps: Sequence[PlayedStep]) -> dict[str, Kept]:
    """What held in the rounds of some steps, by proposer."""
    found: dict[str, Kept] = {}
    for played in (played for step in steps for played in step.rounds):
        kept = found.setdefault(played.source if played.drafted else "", Kept())
        kept.rounds += 1
        kept.units += played.units
        for position in range(min(LONGEST, played.drafted)):
            kept.drafted[position] += 1
            kept.right[position] += played.accepted > position
    return found


def sum_kept(parts: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, Kept]:
    """The sum of such counts, each of them as plain JSON values."""
    total: dict[str, Kept] = {}
    for part in parts:
        for source, values in part.items():
            total.setdefault(source, Kept()).add(Kept(**values))
    return total


@dataclass(slots=True)
class Played:
    """Steps that were played: how many, their mean tokens of context, and their seconds by the cost table."""

    steps: int = 0
    context: float = 0.0
    modelled: float = 0.0

    @classmethod
    def of(cls, steps: Sequence[PlayedStep], table: CostTable) -> Played:
        """Counts and prices steps."""
        prices = Prices(table)
        context = sum(step.context for step in steps) / max(1, len(steps))
        return cls(len(steps), context, sum(prices.step(_priced(step, table)) for step in steps))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def sum_of(cls, parts: Sequence[Mapping[str, Any]]) -> Played:
        """The sum of what `as_dict` gave."""
        steps = sum(part["steps"] for part in parts)
        context = sum(part["context"] * part["steps"] for part in parts) / max(1, steps)
        return cls(steps, context, sum(part["modelled"] for part in parts))


@dataclass(frozen=True, slots=True)
class Bound:
    """The most tokens a second, at these draft lengths by proposer, and how many times plain decoding's that is."""

    tokens_per_second: float
    times_plain: float
    lengths: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def best_bound(
    found: Iterable[Mapping[str, Kept]], table: CostTable, batch: int, context: float, plain: float = 0.0
) -> Bound:
    """The highest bound of several that were counted with other proposers, or at other lengths."""
    bounds = [bound(kept, table, batch, context, plain) for kept in found]
    return max(bounds, key=lambda one: one.tokens_per_second)


def bound(counted: Mapping[str, Kept], table: CostTable, batch: int, context: float, plain: float = 0.0) -> Bound:
    """The best draft length for each proposer in the text that was written in the rounds in which it drafted; `plain`
    seconds are a round without drafts, where another table says so.

    That text is the same at every length: where drafts are shorter, it takes more rounds. A round with nothing to draft
    costs and brings one token. All sequences of a batch are taken to be alike: each pays its share of a step's seconds,
    so tokens over shares are the whole batch's speed.
    """
    options = {source: _options(source, kept, table, batch, context) for source, kept in counted.items()}
    lengths = {source: _fastest(found) for source, found in options.items()}
    texts = {source: kept.rounds + sum(kept.right) for source, kept in counted.items()}
    seconds = 0.0
    for source, length in lengths.items():
        tokens_a_round, seconds_a_round = options[source][length]
        seconds += texts[source] / tokens_a_round * seconds_a_round
    speed = sum(texts.values()) / seconds
    named = {source: length for source, length in lengths.items() if source}
    return Bound(speed, speed * (plain or table.plain(batch, context)) / batch, named)


def _fastest(options: Sequence[tuple[float, float]]) -> int:
    """The length with the most tokens a second; among equals the shortest."""
    return max(range(len(options)), key=lambda length: options[length][0] / options[length][1])


def _options(source: str, kept: Kept, table: CostTable, batch: int, context: float) -> list[tuple[float, float]]:
    """By draft length: tokens that a round brings on average, and one sequence's share of its seconds. A proposer that
    had less to draft was not asked for more: such a round costs and brings less.
    """
    drafter, all_drafted = table.drafters.get(source), sum(kept.drafted)
    unit = drafter.seconds(batch, batch, context) / batch if drafter else 0.0
    units = kept.units / all_drafted if all_drafted else 0.0
    plain = table.target.seconds(batch, batch, context)
    found = [(1.0, table.plain(batch, context) / batch)]
    for length in range(1, LONGEST + 1 if source else 1):
        drafted, right = (sum(counts[:length]) / kept.rounds for counts in (kept.drafted, kept.right))
        more = table.target.seconds(batch * (1 + drafted), batch, context) - plain
        seconds = found[0][1] + more / batch + table.spelling(batch) / batch + drafted * units * unit
        found.append((1.0 + right, seconds))
    return found


def _priced(step: PlayedStep, table: CostTable) -> Step:
    """A step as price lists know it."""
    units = [played.units for played in step.rounds if played.source in table.drafters]
    forwards = [(n, n) for turn in range(max(units, default=0)) if (n := sum(unit > turn for unit in units))]
    rows = sum(1 + played.drafted for played in step.rounds)
    drafts = sum(bool(played.source) for played in step.rounds)
    return Step(rows, max(1, len(step.rounds)), step.context, forwards, drafts)
