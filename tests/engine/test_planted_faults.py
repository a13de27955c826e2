"""Planted faults: each must fail the comparison of on and off, or of cache and prefill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from codespec.api.types import Completion
from codespec.backends.language_model import Rows
from codespec.backends.torch.attention import ForwardContext
from codespec.backends.torch.cache import KVCache
from codespec.sequence import Sequence, Verdict
from codespec.verify.sampling import Position
from codespec.verify.verifier import Turn, Verifier, View
from tests.pairs import CAP, CONTEXT, Mixed, build, model, run, texts, total, varied_requests
from tests.slots import gap_to_prefill

Patch = pytest.MonkeyPatch
REQUESTS = [replace(request, max_tokens=24) for request in varied_requests(n=1)]


def plain() -> list[Completion]:
    return run(build(model("llama", "gpt2")), REQUESTS, speculate=False)


def speculated(expected: list[Completion], plant: Callable[[Patch], None], patch: Patch) -> list[Completion]:
    """Run with drafts; the fault is planted after the engine's start-up check."""
    target = model("llama", "gpt2")
    engine = build(target, Mixed(target, REQUESTS, expected, as_ids=True))
    plant(patch)
    done = run(engine, REQUESTS)
    assert total(done).rounds_partial + total(done).rounds_none >= 10, "without rejections a fault may hide"
    return done


def no_fault(patch: Patch) -> None:
    """Plant nothing."""


def shift_after_rejection(by: int) -> Callable[[Patch], None]:
    """Roll back to a length that is off by `by` positions after a rejection."""

    def plant(patch: Patch) -> None:
        moved: set[Sequence] = set()
        rows, settle = Verifier._rows, Verifier._settle

        def wrong_rows(self: Verifier, turn: Turn) -> Rows:
            right = rows(self, turn)
            return replace(right, start=right.start + by) if turn.sequence in moved else right

        def watching(self: Verifier, turn: Turn, verdict: Verdict | None) -> None:
            settle(self, turn, verdict)
            if verdict and verdict.accepted < len(turn.candidates.ids):
                moved.add(turn.sequence)

        patch.setattr(Verifier, "_rows", wrong_rows)
        patch.setattr(Verifier, "_settle", watching)

    return plant


def wrong_verify_row(patch: Patch) -> None:
    """Judge each candidate with the next row."""
    view = Verifier._view
    patch.setattr(Verifier, "_view", lambda self, turn, rows: view(self, turn, np.roll(rows, 1, 0)))


def correction_dropped(patch: Patch) -> None:
    """Commit a rejected candidate instead of the target's choice."""
    judge = Verifier._judge

    def wrong(self: Verifier, turn: Turn, view: View) -> Verdict:
        verdict, ids = judge(self, turn, view), turn.candidates.ids
        rejected = ids[verdict.accepted : verdict.accepted + 1]
        return Verdict(verdict.accepted, (*verdict.committed[:-1], *(rejected or verdict.committed[-1:])))

    patch.setattr(Verifier, "_judge", wrong)


def write_spans(patch: Patch, write: Callable[..., None]) -> None:
    """Write each span's keys and values separately, with `write` in place of the cache's method."""

    def apart(self: ForwardContext, layer: int, keys: Tensor, values: Tensor) -> None:
        for span in self.spans:
            rows = slice(span.begin, span.end)
            write(self.cache, layer, span.slot, span.start, keys[:, rows], values[:, rows])

    patch.setattr(ForwardContext, "write", apart)


def rejected_rows_stay(patch: Patch) -> None:
    """Never overwrite keys and values after a prompt."""
    write = KVCache.write
    highest: dict[tuple[int, int, int], int] = {}

    def wrong(self: KVCache, layer: int, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
        known = min(max(0, highest.get((id(self), layer, slot), 0) - start), keys.shape[1]) if start else 0
        highest[id(self), layer, slot] = max(highest.get((id(self), layer, slot), 0), start + keys.shape[1])
        write(self, layer, slot, start + known, keys[:, known:], values[:, known:])

    write_spans(patch, wrong)


def last_row_not_written(patch: Patch) -> None:
    """A verify writes one row too few."""
    write = KVCache.write

    def wrong(self: KVCache, layer: int, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
        count = keys.shape[1] - (2 <= keys.shape[1] <= CAP + 1)
        write(self, layer, slot, start, keys[:, :count], values[:, :count])

    write_spans(patch, wrong)


def other_place(patch: Patch) -> None:
    """In a batch of several sequences, a verify writes its rows one position too late."""
    scatter = KVCache.scatter

    def wrong(self: KVCache, layer: int, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        late = [n > 0 and slots[n] == slots[n - 1] and positions[n] > 1 for n in range(len(slots))]
        scatter(self, layer, slots, positions + torch.tensor(late), keys, values)

    patch.setattr(KVCache, "scatter", wrong)


WRONG_TEXT = {
    "one row too many is kept": shift_after_rejection(1),
    "one row too few is kept": shift_after_rejection(-1),
    "wrong verify row": wrong_verify_row,
    "correction dropped": correction_dropped,
    "rejected rows stay": rejected_rows_stay,
    "a cache write is skipped": last_row_not_written,
    "many are written to other positions": other_place,
}


@pytest.mark.parametrize("fault", WRONG_TEXT)
def test_the_text_shows_it(fault: str, monkeypatch: Patch) -> None:
    expected = plain()
    assert texts(speculated(expected, no_fault, monkeypatch)) == texts(expected)
    assert texts(speculated(expected, WRONG_TEXT[fault], monkeypatch)) != texts(expected)


def worst_gap(plant: Callable[[Patch], None], patch: Patch) -> float:
    """Return the worst gap over all rounds of a request: its slot against a prefill without faults."""
    target, twin, request = model("llama", "gpt2"), model("llama", "gpt2", twin=1), REQUESTS[0]
    expected = run(build(target), [request], speculate=False)
    engine = build(target, Mixed(target, [request], expected, as_ids=True), max_batch=1)
    (sequence,) = engine.submit(request)
    worst = 0.0
    while sequence.finish_reason is None:
        with patch.context() as planted:
            plant(planted)
            engine.step()
        worst = max(worst, gap_to_prefill(target, sequence.slot, sequence.ids[: sequence.cached], twin, CONTEXT))
    return worst


def test_the_cache_shows_it(monkeypatch: Patch) -> None:
    assert worst_gap(no_fault, monkeypatch) == 0.0
    assert worst_gap(last_row_not_written, monkeypatch) > 1e-3


def test_noise_keyed_by_the_place_in_the_draft(monkeypatch: Patch) -> None:
    """A token's noise would then depend on where a draft begins."""
    positions = Verifier._positions

    def wrong(self: Verifier, sequence: Sequence, ids: tuple[int, ...]) -> list[Position]:
        return [replace(position, offset=index) for index, position in enumerate(positions(self, sequence, ids))]

    sampled = [replace(request, temperature=0.8, repetition_penalty=1.0) for request in REQUESTS]
    target = model("llama", "gpt2")
    for faulty in (False, True):
        if faulty:
            monkeypatch.setattr(Verifier, "_positions", wrong)
        expected = run(build(target), sampled, speculate=False)
        done = run(build(target, Mixed(target, sampled, expected, as_ids=True)), sampled)
        assert (texts(done) != texts(expected)) == faulty
