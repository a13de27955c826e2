"""Run one batched forward pass of the target over all sequences of a step, and accept or reject their candidates.

Row j of a sequence is the target's output after j candidates, and decides whether candidate j is accepted. Prefill
steps process several pending ids and no candidates.
"""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from codespec.api.types import CompletionRequest, TokenLogprob
from codespec.backends.language_model import LanguageModel, Logits, Rows, on_host
from codespec.sequence import Candidates, Sequence, Verdict
from codespec.text.align import held_vocabulary
from codespec.verify.sampling import Position, Row, SampledRow, Sampler, draw, prepare, probabilities, row_key, uniform

if TYPE_CHECKING:
    from codespec.verify.device_sampling import DeviceSampler

ACCEPTING, REDRAWING, DRAFTING = 1, 2, 3  # purposes of noise; each has its own stream


@dataclass(slots=True)
class View:
    """The target's logits and choices for one sequence. Each row may be read only once, because reading modifies it."""

    sampler: Sampler
    request: CompletionRequest
    choice: int
    logits: Logits  # [candidates + 1, vocabulary]: a row for each candidate, and one for the next token
    positions: collections.abc.Sequence[Position]  # of the rows in the text
    logprobs: list[Row] | None = None  # log-probabilities [vocabulary] of each row, if requested
    picked: collections.abc.Sequence[int] | None = None  # the chosen tokens, if they were selected on the device
    _rows: Row | None = None

    def chosen(self, row: int) -> int:
        """Return the token that the target chooses for a row, regardless of the draft."""
        if self.picked is not None:
            return self.picked[row]
        return self.sampler.pick(self._prepared(row), self.request, self.choice, self.positions[row])

    def probabilities(self, row: int) -> Row:
        """Return the probabilities [vocabulary] from which the target's token is drawn."""
        return probabilities(self._prepared(row), self.request)

    def _prepared(self, row: int) -> Row:
        if self._rows is None:
            self._rows = on_host(self.logits)
        logits: Row = self._rows[row]
        prepare(logits, self.request, self.positions[row])
        return logits

    def uniform(self, row: int, purpose: int) -> float:
        """Return a pseudorandom number in [0, 1) that is independent of all other noise in this text."""
        position = self.positions[row]
        return uniform(row_key(self.request.seed, self.choice, position.offset, position.silent, purpose))


def match(candidates: Candidates, view: View) -> tuple[int, int]:
    """Accept the longest prefix of the candidates that equals the target's choices.

    Return the number of accepted candidates and the target's next token. The resulting text does not depend on the
    draft, either in greedy decoding or in seeded sampling. Text drafts follow Timor et al. (2025, string-level exact
    match), and seeded sampling follows Daliri et al. (2024).
    """
    for row, candidate in enumerate(candidates.ids):
        choice = view.chosen(row)
        if choice != candidate:
            return row, choice
    return len(candidates.ids), view.chosen(len(candidates.ids))


def reject(candidates: Candidates, view: View) -> tuple[int, int]:
    """Apply speculative sampling (Leviathan et al. 2023; Chen et al. 2023). Return the same two numbers as `match`.

    A candidate sampled from the drafter's distribution q is accepted with probability min(1, p/q), where p is the
    target's distribution. After a rejection, a token is sampled from the normalized positive part of p − q. The text
    has the target's distribution, provided that each candidate was sampled from its row of q and that no candidate was
    dropped because of its value.
    """
    for row, (candidate, theirs) in enumerate(zip(candidates.ids, candidates.probabilities, strict=True)):
        ours = view.probabilities(row)
        if view.uniform(row, ACCEPTING) * theirs[candidate] >= ours[candidate]:
            both = min(ours.size, theirs.size)  # one model may have extra rows for ids without text
            ours[:both] -= theirs[:both]
            ours.clip(0.0, out=ours)
            if ours.any():  # otherwise p and q differ only by rounding: accept
                return row, draw(ours, view.uniform(row, REDRAWING))
    return len(candidates.ids), view.chosen(len(candidates.ids))


@dataclass(frozen=True, slots=True)
class Turn:
    """One sequence's part in a step: the number of pending ids to process, and the candidates that follow."""

    sequence: Sequence
    feed: int
    candidates: Candidates

    @property
    def decides(self) -> bool:
        """Whether the target chooses a token for this sequence in this step."""
        return self.feed == self.sequence.num_pending


class Verifier:
    """Runs the target on batches of sequences, and accepts or rejects their candidates."""

    def __init__(self, target: LanguageModel) -> None:
        self.target = target
        self.sampler = Sampler(target.token_bytes)
        self.device_sampler = device_sampler_of(target)
        self._held = held_vocabulary(target.tokenizer)

    def verify(self, turns: collections.abc.Sequence[Turn]) -> list[Verdict | None]:
        """Run all turns in one forward pass, roll back rejected rows, and return the verdicts (None during prefill)."""
        views = self._views(turns, self.target.step([self._rows(turn) for turn in turns]))
        verdicts = [None if view is None else self._judge(turn, view) for turn, view in zip(turns, views, strict=True)]
        for turn, verdict in zip(turns, verdicts, strict=True):
            self._settle(turn, verdict)
        return verdicts

    def _rows(self, turn: Turn) -> Rows:
        sequence = turn.sequence
        ids = sequence.ids[sequence.cached : sequence.cached + turn.feed]
        if not turn.decides:
            return Rows(sequence.slot, sequence.cached, ids, keep=0)
        return Rows(sequence.slot, sequence.cached, [*ids, *turn.candidates.ids], keep=len(turn.candidates.ids) + 1)

    def _views(self, turns: collections.abc.Sequence[Turn], logits: Logits) -> list[View | None]:
        """Return each turn's view of its rows in `logits`, or None for a turn in which the target chooses no token."""
        views: list[View | None] = []
        matched: list[tuple[int, View]] = []  # views that are decided by `match`, each with its first row
        row = 0
        for turn in turns:
            count = len(turn.candidates.ids) + 1 if turn.decides else 0
            view = self._view(turn, logits[row : row + count]) if count else None
            views.append(view)
            if view is not None and not turn.candidates.probabilities:
                matched.append((row, view))
            row += count
        if self.device_sampler is not None and matched:
            _choose(self.device_sampler, matched, logits)
        return views

    def _view(self, turn: Turn, logits: Logits) -> View:
        sequence = turn.sequence
        own = None if sequence.request.logprobs is None else _own_logprobs(logits)  # before logits are modified
        positions = self._positions(sequence, turn.candidates.ids)
        return View(self.sampler, sequence.request, sequence.choice, logits, positions, own)

    def _judge(self, turn: Turn, view: View) -> Verdict:
        sequence, candidates = turn.sequence, turn.candidates
        accepted, last = (reject if candidates.probabilities else match)(candidates, view)
        committed = (*candidates.ids[:accepted], last)
        if view.logprobs is None or sequence.request.logprobs is None:
            return Verdict(accepted, committed)
        logprobs = _committed_logprobs(view.logprobs, committed, sequence.num_generated, sequence.request.logprobs)
        return Verdict(accepted, committed, logprobs)

    def _settle(self, turn: Turn, verdict: Verdict | None) -> None:
        """Retain the processed and accepted ids in the cache. The next step processes the last committed token."""
        sequence = turn.sequence
        sequence.cached += turn.feed + (verdict.accepted if verdict else 0)
        sequence.cached = self.target.resume(sequence.slot, sequence.cached)

    def _positions(self, sequence: Sequence, candidates: tuple[int, ...]) -> list[Position]:
        token_bytes = self.target.token_bytes
        penalized = sequence.request.repetition_penalty != 1.0
        offset, silent = len(sequence.generated), sequence.silent
        before = list(sequence.ids) if penalized else []
        positions = []
        for candidate in (*candidates, None):
            held = sequence.held[offset:]
            positions.append(Position(offset, silent, tuple(before), self._held.allowed_ids(held) if held else None))
            if candidate is None:
                break
            spelled = token_bytes[candidate]
            offset, silent = offset + len(spelled), 0 if spelled else silent + 1
            if penalized:
                before.append(candidate)
        return positions


def device_sampler_of(model: LanguageModel) -> DeviceSampler | None:
    """Return a sampler on a model's device, or None if the model's logits are on the host."""
    if not model.on_device:
        return None
    from codespec.verify.device_sampling import DeviceSampler  # imports torch, which models on the host do not need

    return DeviceSampler(model.token_bytes, model.device)


def _choose(sampler: DeviceSampler, views: collections.abc.Sequence[tuple[int, View]], logits: Any) -> None:
    """Choose a token for every row of these views on the device of the logits, with one copy to the host."""
    numbers = [first + offset for first, view in views for offset in range(len(view.positions))]
    rows = [SampledRow(view.request, view.choice, position) for _, view in views for position in view.positions]
    chosen = iter(sampler.choose(logits if len(rows) == len(logits) else logits[numbers], rows).tolist())
    for _, view in views:
        view.picked = [next(chosen) for _ in view.positions]


def _own_logprobs(logits: Logits) -> list[Row]:
    """Return each row's log-probabilities [vocabulary] before penalty and filters, independently of other rows."""
    own = []
    for row in on_host(logits):
        above = row - row.max()
        own.append(above - np.float32(np.log(np.exp(above).sum(dtype=np.float64))))
    return own


def _committed_logprobs(
    rows: collections.abc.Sequence[Row], committed: collections.abc.Sequence[int], first: int, top: int
) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of the committed tokens, from index `first` on, each with the `top` best ids."""
    logprobs = []
    for index, (row, token) in enumerate(zip(rows, committed, strict=False), first):
        likeliest = tuple((number, float(row[number])) for number in _best(row, top))
        logprobs.append(TokenLogprob(index, token, float(row[token]), likeliest))
    return tuple(logprobs)


def _best(row: Row, count: int) -> list[int]:
    """Return the ids of the `count` highest scores, highest first. Among equal scores, the lowest id comes first."""
    if not count:
        return []
    count = min(count, row.size)
    head = np.flatnonzero(row >= np.partition(row, -count)[-count])
    best: list[int] = head[(-row[head]).argsort(kind="stable")][:count].tolist()
    return best
