"""The policies under comparison, each untrained at first or trained on other projects only, and the oracle.

The oracle knows the target's text and all costs, and plans the cheapest drafts over the whole text. No policy can be
cheaper, so the distance to it is the possible gain. All drive the real engine through the usual policy interface.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from codespec.errors import ConfigError
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.lookup import SuffixProposer
from codespec.sequence import Candidates, Cap
from codespec.sequence import Sequence as Text
from codespec.speculation.acceptance_model import AcceptanceModel
from codespec.speculation.cost_policy import CostPolicy
from codespec.speculation.policy import DraftPlan, DraftPolicy, Ds4Table, FixedLength
from codespec_lab.bench.pair import LONGEST, Pair
from codespec_lab.bench.policy.heuristics import ConfidenceStopped, PlusTwoMinusOne
from codespec_lab.bench.policy.recording import RecordedDraft, Recording
from codespec_lab.bench.policy.replay import ReplayedStep, cached_after, pending, replay
from codespec_lab.bench.steps import Prices

FOLDS = 5
CHAIN = (SuffixProposer.name, DraftModel.name)
LOOKUP = (SuffixProposer.name,)
LENGTHS = range(1, LONGEST + 1)
OWN = "own"  # prefix of a user's policy

Groups = list[list[Recording]]
Make = Callable[[Sequence[Recording]], DraftPolicy]


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


def own_row(file: Path) -> PolicyRow:
    """Return the row of a user's policy: the class that inherits from DraftPolicy in a Python file, which is run.

    Raises ConfigError if the file can't be read or parsed, or does not define exactly one such class.
    """
    try:
        names = runpy.run_path(str(file))
    except (OSError, SyntaxError) as error:
        raise ConfigError(f"The policy file {file} can't be run ({error}). Give a Python file.") from error
    own = [kind for kind in names.values() if isinstance(kind, type) and kind.__module__ == names["__name__"]]
    policies = [kind for kind in own if issubclass(kind, DraftPolicy)]
    if len(policies) != 1:
        raise ConfigError(f"{file} defines {len(policies)} subclasses of DraftPolicy. Define exactly one.")
    return PolicyRow(f"{OWN} {policies[0].name}", lambda _: policies[0]())


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


@dataclass(frozen=True, slots=True)
class Move:
    """The action at one position: the proposer, where its draft is cut (in units, or a lookup's cap), and the number of
    tokens to verify.
    """

    source: str = ""
    cut: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Units(Cap):
    """A cap in the proposer's own units."""

    units: int = 0

    def goes_on(self, confidences: Sequence[float]) -> bool:
        """Return whether the draft has fewer units than the cap."""
        return len(confidences) < self.units


@dataclass(slots=True)
class Node:
    """The cheapest way to a position at which `cached` tokens are in the drafter's cache."""

    seconds: float
    cached: int = 0
    move: Move = field(default_factory=Move)
    before: Node | None = None


class Planner:
    """Finds the cheapest plan for a recording: a shortest path over positions and the drafter's cached tokens.

    With `batch` > 1, a plan assumes that `batch` sequences do the same at once.
    """

    def __init__(self, prices: Prices, batch: int = 1) -> None:
        self.prices = prices
        self.batch = batch

    def plan(self, recording: Recording) -> tuple[dict[int, Move], float]:
        """Return the moves by position, and their total seconds."""
        end = len(recording.ids)
        nodes: list[list[Node]] = [[] for _ in range(end + 1)]
        nodes[0] = [Node(0.0)]
        for position in range(end):
            nodes[position] = _undominated(nodes[position])
            for move, seconds in self._moves(recording, position):
                following = nodes[min(end, position + move.tokens + 1)]
                following += [self._after(recording, position, node, move, seconds) for node in nodes[position]]
        last = min(nodes[end], key=lambda node: node.seconds)
        return _walk(last), last.seconds

    def _moves(self, recording: Recording, position: int) -> Iterator[tuple[Move, float]]:
        """Yield the possible moves, each with its seconds excluding the drafter's first forward."""
        context = float(len(recording.prompt_ids) + position)
        yield Move(), self._verify(0, context)
        for source, recorded in recording.drafts.get(position, {}).items():
            spelling = self.prices.table.draft if recorded.draft.ids is None else 0.0
            for tokens, cut in _cheapest_cuts(recorded):
                units = self._forward(1, context) * (cut - 1) if source == DraftModel.name else 0.0
                yield Move(source, cut, tokens), spelling + units + self._verify(tokens, context)

    def _after(self, recording: Recording, position: int, node: Node, move: Move, seconds: float) -> Node:
        cached, total = node.cached, node.seconds + seconds
        if move.source == DraftModel.name:
            context = float(len(recording.prompt_ids) + position)
            total += self._forward(pending(recording, position, cached), context)
            cached = cached_after(recording, position, move.cut)
        return Node(total, cached, move, node)

    def _verify(self, tokens: int, context: float) -> float:
        return self.prices.verify(self.batch * (1 + tokens), self.batch, context) / self.batch

    def _forward(self, rows: int, context: float) -> float:
        return self.prices.draft([(rows * self.batch, self.batch)], context) / self.batch


class Oracle(FixedLength):
    """Follows the plan of each recording, found by its prompt."""

    name = "oracle"

    def __init__(self, planner: Planner, recordings: Sequence[Recording]) -> None:
        super().__init__(LONGEST)
        self._plans = {recording.prompt_ids: planner.plan(recording)[0] for recording in recordings}

    def plan(self, batch: Sequence[Text]) -> DraftPlan:
        """Return the recordings' moves as caps, and cut the candidates to the moves' lengths."""
        moves = [self._move(sequence) for sequence in batch]

        def trim(candidates: list[Candidates]) -> list[Candidates]:
            return [replace(c, ids=c.ids[: move.tokens]) for c, move in zip(candidates, moves, strict=True)]

        return DraftPlan([_cap(move) for move in moves], trim)

    def _move(self, sequence: Text) -> Move:
        return self._plans[tuple(sequence.prompt_ids)].get(sequence.num_generated, Move())


def _cap(move: Move) -> Cap:
    caps: dict[str, Cap] = {SuffixProposer.name: Cap(0), DraftModel.name: Cap(0)}
    if not move.source:
        return Cap(0)
    caps[move.source] = Units(LONGEST, units=move.cut) if move.source == DraftModel.name else Cap(move.cut)
    return Cap(LONGEST, by_source=caps)


def _cheapest_cuts(recorded: RecordedDraft) -> Iterator[tuple[int, int]]:
    """Yield the shortest cut for each number of correct tokens."""
    for tokens in range(1, max(recorded.cuts) + 1):
        yield tokens, next(cut for cut, right in enumerate(recorded.cuts) if right >= tokens)


def _undominated(nodes: list[Node]) -> list[Node]:
    """Return the nodes that no other node beats in both time and cached tokens."""
    kept: list[Node] = []
    for node in sorted(nodes, key=lambda node: (node.seconds, -node.cached)):
        if not kept or node.cached > kept[-1].cached:
            kept.append(node)
    return kept


def _walk(node: Node) -> dict[int, Move]:
    """Return the moves that lead to a node, by position."""
    moves = []
    while node.before is not None:
        moves.append(node.move)
        node = node.before
    plan, position = {}, 0
    for move in reversed(moves):
        plan[position] = move
        position += move.tokens + 1
    return plan
