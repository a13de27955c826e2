"""The oracle: a policy that knows the target's text and all costs, and plans the cheapest drafts over the whole text.

No policy can be cheaper, so the distance to the oracle is the possible gain. It drives the real engine through the
usual policy interface.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from codespec.proposers.draft_model import DraftModel
from codespec.proposers.suffix import SuffixProposer
from codespec.sequence import Candidates, Cap, Sequence
from codespec.speculation.policy import FixedLength
from codespec_lab.bench.pair import LONGEST
from codespec_lab.bench.policy.recording import RecordedDraft, Recording
from codespec_lab.bench.policy.replay import cached_after, pending
from codespec_lab.bench.steps import Prices


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

    def goes_on(self, confidences: collections.abc.Sequence[float]) -> bool:
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
            spelling = self.prices.table.spelling(self.batch) / self.batch if recorded.draft.ids is None else 0.0
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

    def __init__(self, planner: Planner, recordings: collections.abc.Sequence[Recording]) -> None:
        super().__init__(LONGEST)
        self._plans = {recording.prompt_ids: planner.plan(recording)[0] for recording in recordings}

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """Return the plan's caps."""
        return [_cap(self._move(sequence)) for sequence in sequences]

    def trim(self, sequences: collections.abc.Sequence[Sequence], candidates: list[Candidates]) -> list[Candidates]:
        """Return the candidates cut to the plan's lengths."""
        return [replace(c, ids=c.ids[: self._move(s).tokens]) for s, c in zip(sequences, candidates, strict=True)]

    def _move(self, sequence: Sequence) -> Move:
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
