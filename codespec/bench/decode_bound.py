"""The speed that a cost table and the measured acceptance allow, and the speed that the table gives the rounds played.

Both leave out what codespec itself costs beyond the table, so their distance to the clock says what is left to gain:
against the bound by choosing better lengths and by a leaner round, against the prediction by the round alone. A policy
that drafts far only where it is sure makes the bound too high, since far positions were tried there only. Knows counts
and tables; knows no clock.
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

TURNS = 50


@dataclass(slots=True)
class Kept:
    """Rounds in which one proposer drafted ("" for none). By position: how many drafts had a token there behind right
    ones (`reached`), and how many of those tokens were `right`; `units` of the proposer's for `tokens` of the target's.
    """

    rounds: int = 0
    reached: list[int] = field(default_factory=lambda: [0] * LONGEST)
    right: list[int] = field(default_factory=lambda: [0] * LONGEST)
    units: int = 0
    tokens: int = 0

    def survivals(self) -> list[float]:
        """The chance that a draft is right up to each position, from the share that held at each where all before did.

        Ends at the last position that was ever reached: of those behind nothing is known.
        """
        chances, chance = [], 1.0
        for position in range(LONGEST):
            if not self.reached[position]:
                break
            chance *= self.right[position] / self.reached[position]
            chances.append(chance)
        return chances


@dataclass(slots=True)
class Rounds:
    """What was played in some work: by proposer, and as modelled seconds."""

    kept: dict[str, Kept] = field(default_factory=dict)
    steps: int = 0
    context: float = 0.0  # mean tokens a step
    modelled: float = 0.0

    @classmethod
    def of(cls, steps: Sequence[PlayedStep], table: CostTable) -> Rounds:
        """Counts and prices steps."""
        found = cls(steps=len(steps), context=sum(step.context for step in steps) / max(1, len(steps)))
        prices = Prices(table)
        for step in steps:
            found.modelled += prices.step(_priced(step, table))
            for played in step.rounds:
                kept = found.kept.setdefault(played.source if played.drafted else "", Kept())
                kept.rounds += 1
                kept.units += played.units
                kept.tokens += played.drafted
                for position in range(min(LONGEST, played.drafted)):
                    kept.reached[position] += played.accepted >= position
                    kept.right[position] += played.accepted > position
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def sum_of(cls, parts: Iterable[Mapping[str, Any]]) -> Rounds:
        """The sum of what `as_dict` gave."""
        total, context = cls(), 0.0
        for part in parts:
            total.steps += part["steps"]
            total.modelled += part["modelled"]
            context += part["context"] * part["steps"]
            for source, values in part["kept"].items():
                kept = total.kept.setdefault(source, Kept())
                kept.rounds += values["rounds"]
                kept.units += values["units"]
                kept.tokens += values["tokens"]
                kept.reached = [a + b for a, b in zip(kept.reached, values["reached"], strict=True)]
                kept.right = [a + b for a, b in zip(kept.right, values["right"], strict=True)]
        total.context = context / max(1, total.steps)
        return total


@dataclass(frozen=True, slots=True)
class Bound:
    """The most tokens a second, at these draft lengths by proposer, and how many times plain decoding's that is."""

    tokens_per_second: float
    times_plain: float
    lengths: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def bound(rounds: Rounds, table: CostTable, batch: int) -> Bound:
    """The best draft length for each proposer in the rounds in which it drafted.

    A ratio of sums is largest where each part is best at the ratio's own price, so the price is raised until it stays.
    A round with nothing to draft costs and brings one token. All sequences of a batch are taken to be alike.
    """
    options = {source: _options(source, kept, table, batch, rounds.context) for source, kept in rounds.kept.items()}
    price, lengths = 0.0, dict.fromkeys(options, 0)
    for _ in range(TURNS):
        lengths = {source: _best(found, price) for source, found in options.items()}
        tokens = sum(rounds.kept[source].rounds * options[source][n][0] for source, n in lengths.items())
        seconds = sum(rounds.kept[source].rounds * options[source][n][1] for source, n in lengths.items())
        if not seconds or tokens / seconds <= price * (1 + 1e-9):
            break
        price = tokens / seconds
    plain = batch / table.plain(batch, rounds.context)
    named = {source: length for source, length in lengths.items() if source}
    return Bound(price * batch, price * batch / plain, named)


def _best(options: Sequence[tuple[float, float]], price: float) -> int:
    return max(range(len(options)), key=lambda length: options[length][0] - price * options[length][1])


def _options(source: str, kept: Kept, table: CostTable, batch: int, context: float) -> list[tuple[float, float]]:
    """By draft length: tokens that a round brings, and one sequence's share of its seconds."""
    survivals = kept.survivals() if source else []
    units = kept.units / kept.tokens if kept.tokens else 1.0
    drafter = table.drafters.get(source)
    unit = drafter.seconds(batch, batch, context) / batch if drafter else 0.0
    found, tokens = [], 1.0
    for length in range(len(survivals) + 1):
        tokens += survivals[length - 1] if length else 0.0
        seconds = table.plain(batch, context) / batch
        if length:
            rows = table.target.seconds(batch * (1 + length), batch, context) - table.target.seconds(
                batch, batch, context
            )
            seconds += rows / batch + table.retokenize + length * units * unit
        found.append((tokens, seconds))
    return found


def _priced(step: PlayedStep, table: CostTable) -> Step:
    """A step as price lists know it."""
    units = [played.units for played in step.rounds if played.source in table.drafters]
    forwards = [(n, n) for turn in range(max(units, default=0)) if (n := sum(unit > turn for unit in units))]
    rows = sum(1 + played.drafted for played in step.rounds)
    drafts = sum(bool(played.source) for played in step.rounds)
    return Step(rows, max(1, len(step.rounds)), step.context, forwards, drafts)
