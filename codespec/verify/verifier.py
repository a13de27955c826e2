"""Run one batched target forward over all sequences of a step, and accept or reject their candidates.

Row j of a sequence is the target's output after j candidates and decides candidate j. Prefill is the same with more
pending ids and no candidates, so there is only one kind of step.
"""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from codespec.api.types import TokenLogprob
from codespec.backends.language_model import LanguageModel, Logits, Rows, on_host
from codespec.sequence import Candidates, Sequence, Verdict
from codespec.text.align import held_vocabulary
from codespec.verify.acceptance import View, match, reject
from codespec.verify.sampling import Position, Row, SampledRow, Sampler

if TYPE_CHECKING:
    from codespec.verify.device_sampling import DeviceSampler


@dataclass(frozen=True, slots=True)
class Turn:
    """One sequence's part in a step: the number of pending ids to feed, and the candidates after them.

    There are candidates only if all pending ids are fed.
    """

    sequence: Sequence
    feed: int
    candidates: Candidates

    @property
    def decides(self) -> bool:
        """Whether the target chooses a token for this sequence in this step."""
        return self.feed == self.sequence.num_pending


class Verifier:
    """The target's side of a round."""

    def __init__(self, target: LanguageModel) -> None:
        self.target = target
        self.sampler = Sampler(target.token_bytes)
        self.device_sampler = device_sampler_of(target)
        self._held = held_vocabulary(target.tokenizer)

    def verify(self, turns: collections.abc.Sequence[Turn]) -> list[Verdict | None]:
        """Run all turns in one forward, apply the acceptance rule, and roll back rejected positions.

        Returns a verdict for each turn, or None if it decides no token.
        """
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
        """Return the target's view of each turn that decides. `logits` is [all their rows, vocabulary]."""
        views: list[View | None] = []
        matched: list[tuple[int, View]] = []  # those that need no whole rows, each with its first row
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
        """Keep the fed and accepted ids in the cache. The last committed token is fed in the next step."""
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
    """Return the sampler that chooses in the memory of a model's device, or None if its logits are on the host."""
    if not model.on_device:
        return None
    from codespec.verify.device_sampling import DeviceSampler  # with torch, which models on the host do not need

    return DeviceSampler(model.token_bytes, model.device)


def _choose(sampler: DeviceSampler, views: collections.abc.Sequence[tuple[int, View]], logits: Any) -> None:
    """Choose for all rows of these views on the logits' device, with one copy to the host."""
    numbers = [first + offset for first, view in views for offset in range(len(view.positions))]
    rows = [SampledRow(view.request, view.choice, position) for _, view in views for position in view.positions]
    chosen = iter(sampler.choose(logits if len(rows) == len(logits) else logits[numbers], rows).tolist())
    for _, view in views:
        view.picked = [next(chosen) for _ in view.positions]


def _own_logprobs(logits: Logits) -> list[Row]:
    """Return the target's own log-probabilities of each row of logits [rows, vocabulary], before penalty and filters.

    Every row is computed separately, so that a value depends neither on neighbouring rows nor on the draft.
    """
    own = []
    for row in on_host(logits):
        above = row - row.max()
        own.append(above - np.float32(np.log(np.exp(above).sum(dtype=np.float64))))
    return own


def _committed_logprobs(
    rows: collections.abc.Sequence[Row], committed: collections.abc.Sequence[int], first: int, top: int
) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of the committed tokens, each with the `top` most likely ids.

    `first` is the index of the first committed token in its completion.
    """
    logprobs = []
    for place, (row, token) in enumerate(zip(rows, committed, strict=False), first):
        likeliest = tuple((number, float(row[number])) for number in _best(row, top))
        logprobs.append(TokenLogprob(place, token, float(row[token]), likeliest))
    return tuple(logprobs)


def _best(row: Row, count: int) -> list[int]:
    """Return the ids of the `count` best scores, best first; ties in the order of ids."""
    if not count:
        return []
    count = min(count, row.size)
    head = np.flatnonzero(row >= np.partition(row, -count)[-count])
    best: list[int] = head[(-row[head]).argsort(kind="stable")][:count].tolist()
    return best
