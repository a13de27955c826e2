"""The two acceptance rules, and the target's view of a round that they use."""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass

from codespec.api.types import CompletionRequest
from codespec.backends.language_model import Logits, on_host
from codespec.sequence import Candidates
from codespec.verify import noise
from codespec.verify.sampling import Position, Row, Sampler, draw, prepare, probabilities

ACCEPTING, REDRAWING = 1, 2  # purposes of noise; each has its own stream


@dataclass(slots=True)
class View:
    """The target's view of one sequence's candidates.

    `logits` [candidates + 1, vocabulary] are the rows after each candidate, `positions` their positions in the text. A
    row is processed on first access and may be accessed only once. `picked` holds the choices if they were already
    made. `logprobs` holds the log-probabilities of each row if requested.
    """

    sampler: Sampler
    request: CompletionRequest
    choice: int
    logits: Logits
    positions: collections.abc.Sequence[Position]
    logprobs: list[Row] | None = None
    picked: collections.abc.Sequence[int] | None = None
    _rows: Row | None = None

    def chosen(self, row: int) -> int:
        """Return the target's own choice, which does not depend on the draft."""
        if self.picked is not None:
            return self.picked[row]
        return self.sampler.pick(self._prepared(row), self.request, self.choice, self.positions[row])

    def probabilities(self, row: int) -> Row:
        """Return the probabilities [vocabulary] of the target's choice."""
        return probabilities(self._prepared(row), self.request)

    def _prepared(self, row: int) -> Row:
        if self._rows is None:
            self._rows = on_host(self.logits)
        found: Row = self._rows[row]
        prepare(found, self.request, self.positions[row])
        return found

    def uniform(self, row: int, purpose: int) -> float:
        """Return a number in [0, 1) that is independent of all other noise in this text."""
        position = self.positions[row]
        return noise.uniform(noise.row_key(self.request.seed, self.choice, position.offset, position.silent, purpose))


def match(candidates: Candidates, view: View) -> tuple[int, int]:
    """Accept the longest prefix in which candidates equal the target's choices.

    Return the number of accepted candidates, and the target's own token after them. Exact for greedy and for seeded
    sampling with any draft, because a choice does not depend on the draft (string-level exact match if the draft is
    text: Timor et al. 2025; seeded replay: Daliri et al. 2024).
    """
    for row, candidate in enumerate(candidates.ids):
        choice = view.chosen(row)
        if choice != candidate:
            return row, choice
    return len(candidates.ids), view.chosen(len(candidates.ids))


def reject(candidates: Candidates, view: View) -> tuple[int, int]:
    """Speculative sampling (Leviathan et al. 2023; Chen et al. 2023). Returns the same as `match`.

    A candidate sampled from q is accepted with probability min(1, p/q). If it is rejected, a token is sampled from the
    normalized positive part of p − q. The text depends on the draft, but its distribution is the target's, provided
    each candidate was sampled from the row of q that came with it and none was dropped because of its value.
    """
    for row, (candidate, theirs) in enumerate(zip(candidates.ids, candidates.probabilities, strict=True)):
        ours = view.probabilities(row)
        if view.uniform(row, ACCEPTING) * theirs[candidate] >= ours[candidate]:
            beyond = ours.copy()
            both = min(ours.size, theirs.size)  # one model may have extra rows for ids without text
            beyond[:both] -= theirs[:both]
            beyond.clip(0.0, out=beyond)
            if beyond.any():  # otherwise p and q differ only by rounding: accept
                return row, draw(beyond, view.uniform(row, REDRAWING))
    return len(candidates.ids), view.chosen(len(candidates.ids))
