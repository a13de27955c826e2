"""The policies that are compared, and what each may know: nothing, or what it learned on other projects.

Knows policies, recordings and prices; knows no figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from codespec.bench.oracle import Oracle, Planner
from codespec.bench.pair import Pair
from codespec.bench.pricing import Prices
from codespec.bench.recording import LONGEST, Recording
from codespec.bench.replay import replay
from codespec.bench.tape import Step
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.suffix import SuffixProposer
from codespec.speculation.acceptance_model import AcceptanceModel
from codespec.speculation.cost_policy import CostPolicy
from codespec.speculation.policy import ConfidenceStopped, DraftLengthPolicy, Ds4Table, FixedLength, PlusTwoMinusOne

FOLDS = 5
CHAIN = (SuffixProposer.name, DraftModel.name)
LOOKUP = (SuffixProposer.name,)
LENGTHS = range(1, LONGEST + 1)

Groups = list[list[Recording]]
Make = Callable[[Sequence[Recording]], DraftLengthPolicy]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the comparison: a policy for each group of prompts, and who drafts."""

    name: str
    make: Make
    sources: Sequence[str] = CHAIN


def by_file(recordings: Iterable[Recording]) -> Groups:
    """Recordings of one file together."""
    groups: dict[tuple[str, str], list[Recording]] = {}
    for recording in recordings:
        groups.setdefault((recording.spot.project, recording.spot.path), []).append(recording)
    return list(groups.values())


def by_fold(recordings: Iterable[Recording]) -> Groups:
    """FOLDS groups of about equal size, no project in two of them."""
    projects: dict[str, list[Recording]] = {}
    for recording in recordings:
        projects.setdefault(recording.spot.project, []).append(recording)
    folds: Groups = [[] for _ in range(FOLDS)]
    for _, found in sorted(projects.items(), key=lambda item: (-len(item[1]), item[0])):
        min(folds, key=len).extend(found)
    return [fold for fold in folds if fold]


def rows_of_thumb() -> list[Row]:
    """Rows that no cost table changes: off, the fixed lengths (with and without a drafter), the rules of thumb."""
    return [
        Row("off", lambda _: FixedLength(0)),
        *(_fixed("fixed", length, CHAIN) for length in LENGTHS),
        *(_fixed("lookup", length, LOOKUP) for length in LENGTHS),
        Row("plus2minus1", lambda _: PlusTwoMinusOne(LONGEST)),
        Row("confidence:0.4", lambda _: ConfidenceStopped(LONGEST, 0.4)),
        Row("ds4-80", lambda _: Ds4Table(LONGEST)),
    ]


def cost_rows(pair: Pair, prices: Prices, recordings: Sequence[Recording]) -> list[Row]:
    """The cost rule with and without syntax, fresh and learned on other projects."""
    return [row for syntax in (False, True) for row in _cost_rows(pair, prices, recordings, syntax)]


def oracle_row(prices: Prices, batch: int) -> Row:
    """Who knows the text."""
    planner = Planner(prices, batch)
    return Row("oracle", lambda group: Oracle(planner, group))


def learned_elsewhere(
    pair: Pair, prices: Prices, recordings: Sequence[Recording], syntax: bool
) -> Mapping[str, Mapping[str, object]]:
    """What a rule has learned after all projects but one fold's, by project."""
    found: dict[str, Mapping[str, object]] = {}
    for fold in by_fold(recordings):
        projects = {recording.spot.project for recording in fold}
        others = [recording for recording in recordings if recording.spot.project not in projects]
        rule = cost_policy(pair, prices, syntax)
        replay(pair, [(rule, others)])
        found |= dict.fromkeys(projects, rule.acceptance.as_dict())
    return found


def cost_policy(pair: Pair, prices: Prices, syntax: bool, learned: AcceptanceModel | None = None) -> CostPolicy:
    """A cost rule that goes by the same table as the bench prices by."""
    return CostPolicy(prices.table, pair.sources, tokens=LONGEST, syntax=syntax, acceptance=learned)


def play(pair: Pair, row: Row, groups: Groups, batch: int) -> list[Step]:
    """Replays a row's policies on all groups."""
    return replay(pair, ((row.make(group), group) for group in groups), batch=batch, sources=row.sources)


def _fixed(name: str, length: int, sources: Sequence[str]) -> Row:
    return Row(f"{name}:{length}", lambda _: FixedLength(length), sources)


def _cost_rows(pair: Pair, prices: Prices, recordings: Sequence[Recording], syntax: bool) -> list[Row]:
    learned = learned_elsewhere(pair, prices, recordings, syntax)

    def fresh(_: Sequence[Recording]) -> CostPolicy:
        return cost_policy(pair, prices, syntax)

    def knowing(group: Sequence[Recording]) -> CostPolicy:
        return cost_policy(pair, prices, syntax, AcceptanceModel.from_dict(learned[group[0].spot.project]))

    name = "cost+syntax" if syntax else "cost"
    return [Row(f"{name} fresh", fresh), Row(f"{name} learned", knowing)]
