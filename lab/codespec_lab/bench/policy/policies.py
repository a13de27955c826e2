"""The policies under comparison, each untrained at first or trained on other projects only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from codespec.proposers.draft_model import DraftModel
from codespec.proposers.suffix import SuffixProposer
from codespec.speculation.acceptance_model import AcceptanceModel
from codespec.speculation.cost_policy import CostPolicy
from codespec.speculation.policy import ConfidenceStopped, DraftLengthPolicy, Ds4Table, FixedLength, PlusTwoMinusOne
from codespec_lab.bench.pair import LONGEST, Pair
from codespec_lab.bench.policy.oracle import Oracle, Planner
from codespec_lab.bench.policy.recording import Recording
from codespec_lab.bench.policy.replay import ReplayedStep, replay
from codespec_lab.bench.steps import Prices

FOLDS = 5
CHAIN = (SuffixProposer.name, DraftModel.name)
LOOKUP = (SuffixProposer.name,)
LENGTHS = range(1, LONGEST + 1)

Groups = list[list[Recording]]
Make = Callable[[Sequence[Recording]], DraftLengthPolicy]


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One row of the comparison: a factory of the policy for a group of prompts, and the proposers."""

    name: str
    make: Make
    sources: Sequence[str] = CHAIN


def by_file(recordings: Iterable[Recording]) -> Groups:
    """Group recordings by file."""
    groups: dict[tuple[str, str], list[Recording]] = {}
    for recording in recordings:
        groups.setdefault((recording.site.project, recording.site.path), []).append(recording)
    return list(groups.values())


def by_fold(recordings: Iterable[Recording]) -> Groups:
    """Split recordings into FOLDS groups of about equal size; each project is in one group only."""
    projects: dict[str, list[Recording]] = {}
    for recording in recordings:
        projects.setdefault(recording.site.project, []).append(recording)
    folds: Groups = [[] for _ in range(FOLDS)]
    for _, found in sorted(projects.items(), key=lambda item: (-len(item[1]), item[0])):
        min(folds, key=len).extend(found)
    return [fold for fold in folds if fold]


def rows_of_thumb() -> list[PolicyRow]:
    """Return the policies without a cost model: off, fixed lengths (with and without a drafter), rules of thumb."""
    return [
        PolicyRow("off", lambda _: FixedLength(0)),
        *(_fixed("fixed", length, CHAIN) for length in LENGTHS),
        *(_fixed("lookup", length, LOOKUP) for length in LENGTHS),
        PolicyRow("plus2minus1", lambda _: PlusTwoMinusOne(LONGEST)),
        PolicyRow("confidence:0.4", lambda _: ConfidenceStopped(LONGEST, 0.4)),
        PolicyRow("ds4-80", lambda _: Ds4Table(LONGEST)),
    ]


def cost_rows(pair: Pair, prices: Prices, recordings: Sequence[Recording]) -> list[PolicyRow]:
    """Return the cost policy with and without syntax, untrained and trained on other projects."""
    return [row for syntax in (False, True) for row in _cost_rows(pair, prices, recordings, syntax)]


def oracle_row(prices: Prices, batch: int) -> PolicyRow:
    """Return the oracle's row."""
    planner = Planner(prices, batch)
    return PolicyRow("oracle", lambda group: Oracle(planner, group))


def learned_elsewhere(
    pair: Pair, prices: Prices, recordings: Sequence[Recording], syntax: bool
) -> Mapping[str, Mapping[str, object]]:
    """Return, by project, the acceptance statistics of a cost policy trained on all folds except the project's own."""
    found: dict[str, Mapping[str, object]] = {}
    for fold in by_fold(recordings):
        projects = {recording.site.project for recording in fold}
        others = [recording for recording in recordings if recording.site.project not in projects]
        policy = cost_policy(pair, prices, syntax)
        replay(pair, [(policy, others)])
        found |= dict.fromkeys(projects, policy.acceptance.as_dict())
    return found


def cost_policy(pair: Pair, prices: Prices, syntax: bool, learned: AcceptanceModel | None = None) -> CostPolicy:
    """Return a cost policy that uses the same table as the pricing of the steps."""
    return CostPolicy(prices.table, pair.sources, tokens=LONGEST, syntax=syntax, acceptance=learned)


def play(pair: Pair, row: PolicyRow, groups: Groups, batch: int) -> list[ReplayedStep]:
    """Replay a row's policy on each group."""
    return replay(pair, ((row.make(group), group) for group in groups), batch=batch, sources=row.sources)


def _fixed(name: str, length: int, sources: Sequence[str]) -> PolicyRow:
    return PolicyRow(f"{name}:{length}", lambda _: FixedLength(length), sources)


def _cost_rows(pair: Pair, prices: Prices, recordings: Sequence[Recording], syntax: bool) -> list[PolicyRow]:
    learned = learned_elsewhere(pair, prices, recordings, syntax)

    def fresh(_: Sequence[Recording]) -> CostPolicy:
        return cost_policy(pair, prices, syntax)

    def knowing(group: Sequence[Recording]) -> CostPolicy:
        return cost_policy(pair, prices, syntax, AcceptanceModel.from_dict(learned[group[0].site.project]))

    name = "cost+syntax" if syntax else "cost"
    return [PolicyRow(f"{name} fresh", fresh), PolicyRow(f"{name} learned", knowing)]
