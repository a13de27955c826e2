"""How far a draft is right: two rules, and the target's side of a round that both look at. Knows ids,
probabilities and noise; does not know models and texts.
"""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from codespec.sequence import Candidates
from codespec.types import CompletionRequest
from codespec.verify import noise
from codespec.verify.sampling import Position, Row, Sampler, draw, prepare, probabilities

ACCEPTING, REDRAWING = 1, 2  # what noise is for: each purpose has its own


@dataclass(slots=True)
class View:
    """What the target says behind each of one sequence's candidates: logits [candidates + 1, vocabulary] and where they
    stand. A row is worked on when it is asked for, and may be asked once. `picked`: the choices, where they were made
    before; `logprobs`: the rows' own, where they are asked for.
    """

    sampler: Sampler
    request: CompletionRequest
    choice: int
    logits: Tensor
    positions: collections.abc.Sequence[Position]
    logprobs: list[Tensor] | None = None
    picked: collections.abc.Sequence[int] | None = None
    _rows: Row | None = None

    def chosen(self, row: int) -> int:
        """The target's own choice, which depends on no draft."""
        if self.picked is not None:
            return self.picked[row]
        return self.sampler.pick(self._prepared(row), self.request, self.choice, self.positions[row])

    def probabilities(self, row: int) -> Row:
        """The probabilities [vocabulary] of that choice."""
        return probabilities(self._prepared(row), self.request)

    def _prepared(self, row: int) -> Row:
        if self._rows is None:
            self._rows = self.logits.cpu().numpy()
        found: Row = self._rows[row]
        prepare(found, self.request, self.positions[row])
        return found

    def uniform(self, row: int, purpose: int) -> float:
        """A number in [0, 1) that nothing else in this text depends on."""
        position = self.positions[row]
        return noise.uniform(noise.row_key(self.request.seed, self.choice, position.offset, position.silent, purpose))


class AcceptanceRule(Protocol):
    """Decides how many candidates stand, and which token comes behind them."""

    def judge(self, candidates: Candidates, view: View) -> tuple[int, int]:
        """The number of candidates to keep, and the target's correction or bonus token."""
        ...


class MatchRule:
    """The longest prefix in which candidate and choice are equal.

    Exact for greedy and for seeded sampling alike, whatever the draft, because a choice does not depend on it
    (string-level exact match where the draft came as text: Timor et al. 2025; seeded replay: Daliri et al. 2024).
    """

    def judge(self, candidates: Candidates, view: View) -> tuple[int, int]:
        """Choices up to the first that is not the candidate."""
        for row, candidate in enumerate(candidates.ids):
            choice = view.chosen(row)
            if choice != candidate:
                return row, choice
        return len(candidates.ids), view.chosen(len(candidates.ids))


class RejectionRule:
    """Speculative sampling (Leviathan et al. 2023; Chen et al. 2023): a candidate that the drafter drew from q stands
    with probability min(1, p/q); else a token is drawn from what p has beyond q.

    The text depends on the draft, its distribution does not: it is the target's, if each candidate was drawn from the
    row of q that came with it and nobody dropped one for what it is.
    """

    def judge(self, candidates: Candidates, view: View) -> tuple[int, int]:
        """Up to the first candidate that does not stand; behind all of them the target's own choice."""
        for row, (candidate, theirs) in enumerate(zip(candidates.ids, candidates.probabilities, strict=True)):
            ours = view.probabilities(row)
            if view.uniform(row, ACCEPTING) * theirs[candidate] >= ours[candidate]:
                beyond = ours.copy()
                both = min(ours.size, theirs.size)  # one model may have more rows for ids without text
                beyond[:both] -= theirs[:both]
                beyond.clip(0.0, out=beyond)
                if beyond.any():  # else they are the same but for rounding, and it stands
                    return row, draw(beyond, view.uniform(row, REDRAWING))
        return len(candidates.ids), view.chosen(len(candidates.ids))
