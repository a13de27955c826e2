"""Rounds of acceptance and rollback over several slots, with every row checked against a reference.

Each slot follows a script, a fixed sequence of ids. A move feeds the script's next ids (accepted), then wrong ids
(rejected), and rolls back to the accepted ones. Some moves first roll back a few more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from codespec.backends.language_model import Rows
from codespec.backends.torch.model import TorchModel
from tests.tiny_models import sample_ids

if TYPE_CHECKING:
    from hypothesis import strategies as st

SLOTS = 3
Caches = dict[int, tuple[Tensor, Tensor]]  # layer -> keys and values [kv_heads, T, size]


@dataclass(frozen=True, slots=True)
class Move:
    """One slot's part of a round; `whole` requests the logits of all its rows instead of the last."""

    accepted: int
    rejected: int
    back: int
    whole: bool


Round = tuple[tuple[int, Move], ...]  # slot and move, in the order of the batch
BYTES = 13  # per round: one for the order, then four per slot


def rounds(count: int, chunk: int = 40) -> st.SearchStrategy[list[Round]]:
    """Return a strategy of `count` rounds of one to SLOTS slots; most are as wide as drafts, some up to `chunk` like
    prefills.

    Rounds are drawn as one byte string, because single draws would take longer than the model. Strings of zeros, which
    hypothesis tries first, are excluded.
    """
    from hypothesis import strategies as st  # not installed for GPU tests

    size = count * BYTES
    drawn = st.binary(min_size=size, max_size=size).filter(any)
    return drawn.map(lambda data: _rounds(data, chunk))


def random_rounds(seed: int, count: int, chunk: int = 40) -> list[Round]:
    """Return random rounds from a seed, without hypothesis."""
    return _rounds(Random(seed).randbytes(count * BYTES), chunk)


def _rounds(data: bytes, chunk: int) -> list[Round]:
    return [_round(data[at : at + BYTES], chunk) for at in range(0, len(data), BYTES)]


def _round(data: bytes, chunk: int) -> Round:
    moves = []
    for place in range(SLOTS):
        slot = (place + data[0]) % SLOTS
        present, accepted, rejected, back = data[1 + 4 * slot : 5 + 4 * slot]
        if accepted >= 160:
            accepted = 7 + (accepted - 160) * (chunk - 7) // 95
        else:
            accepted %= 7
        if present % 2 or not place:
            moves.append((slot, Move(accepted, rejected % 7, max(0, back - 215), present < 128)))
    return tuple(moves)


def covering(length: int) -> list[Round]:
    """Return fixed rounds that cover every position of every script, next to slots of other widths."""
    widths = (1, 9, 130, 2, 40, 5, 260, 3, 64, 8) if length > 512 else (1, 9, 2, 5, 17, 3, 8, 1, 6, 4)
    played: list[Round] = []
    lengths = [0] * SLOTS
    while min(lengths) < length:
        taking_part = []
        for slot in range(SLOTS):
            number = len(played) * (slot + 1) + slot
            accepted = min(widths[number % len(widths)], length - lengths[slot])
            lengths[slot] += accepted
            if accepted:
                taking_part.append((slot, Move(accepted, number % 5, 0, True)))
        played.append(tuple(taking_part))
    return played


class Replay:
    """Plays rounds on one model. `gap` is the worst relative difference so far; 0.0 means equal bit for bit.

    The references are the model's own whole prefills, or the given `logits`; with the latter, caches are not compared.
    """

    def __init__(self, model: TorchModel, length: int, logits: Sequence[Tensor] | None = None) -> None:
        self.model = model
        self.length = length
        self.scripts = scripts(model.spec.vocab_size, length)
        prefills = [] if logits is not None else [fresh_prefill(model, ids) for ids in self.scripts]
        self.logits = logits if logits is not None else [rows for rows, _ in prefills]
        self.caches = [held for _, held in prefills]
        self.gap = 0.0
        self.rows = 0

    def play(self, played: Sequence[Round]) -> float:
        """Play the rounds from empty slots and return the gap."""
        self.model.allocate(SLOTS, self.length)
        lengths = [0] * SLOTS
        for slot in range(SLOTS):
            self.model.admit(slot, self.length)
        for round_ in played:
            self._play_one(round_, lengths)
        self._compare_caches(lengths)
        return self.gap

    def _play_one(self, round_: Round, lengths: list[int]) -> None:
        parts = [(slot, self._prepare(slot, move, lengths)) for slot, move in round_]
        logits = self.model.forward([rows for _, (rows, _) in parts])
        first = 0
        for slot, (rows, accepted) in parts:
            skipped = len(rows.ids) - rows.keep
            right = logits[first : first + max(0, accepted - skipped)]
            wanted = self.logits[slot][rows.start + skipped : rows.start + accepted]
            self._compare(right, wanted)
            first += rows.keep
            lengths[slot] = self._kept(rows, accepted)
            self.model.rollback(slot, lengths[slot])

    def _kept(self, rows: Rows, accepted: int) -> int:
        """Return the slot's length after the round."""
        return rows.start + accepted

    def _prepare(self, slot: int, move: Move, lengths: list[int]) -> tuple[Rows, int]:
        start = max(0, lengths[slot] - move.back)
        if start == self.length:  # the script has ended: reuse the slot with its old content
            start = 0
            self.model.admit(slot, self.length)
        start = self.model.resume(slot, start)
        accepted = min(move.accepted, self.length - start)
        rejected = min(max(move.rejected, 1 - accepted), self.length - start - accepted)
        script = self.scripts[slot]
        wrong = [(token + 1) % self.model.spec.vocab_size for token in script[start + accepted :][:rejected]]
        ids = [*script[start : start + accepted], *wrong]
        return Rows(slot, start, ids, keep=len(ids) if move.whole else 1), accepted

    def _compare(self, got: Tensor, wanted: Tensor) -> None:
        self.rows += len(wanted)
        self.gap = max(self.gap, gap(got, wanted))

    def _compare_caches(self, lengths: Sequence[int]) -> None:
        for slot, reference in enumerate(self.caches):
            for layer, pair in reference.items():
                assert self.model.cache is not None
                held = self.model.cache.read(layer, slot, lengths[slot])
                for part, fresh in zip(held, pair, strict=True):
                    self.gap = max(self.gap, gap(part, fresh[:, : lengths[slot]]))


def scripts(vocab_size: int, length: int) -> list[list[int]]:
    """Return one id sequence per slot."""
    return [sample_ids(length, seed, vocab_size) for seed in range(SLOTS)]


def fresh_prefill(model: TorchModel, ids: Sequence[int]) -> tuple[Tensor, Caches]:
    """Return the logits of all rows and the cache after one forward over `ids`, alone in a new cache."""
    model.allocate(1, len(ids))
    model.admit(0, len(ids))
    logits = model.forward([Rows(0, 0, ids, keep=len(ids))])
    assert model.cache is not None
    held = {layer: model.cache.read(layer, 0, len(ids)) for layer in model.shapes}
    return logits, {layer: (keys.clone(), values.clone()) for layer, (keys, values) in held.items()}


def gap(got: Tensor, wanted: Tensor) -> float:
    """Return 0.0 for equal bits, else the largest difference relative to the largest value."""
    assert got.shape == wanted.shape
    if torch.equal(got, wanted):
        return 0.0
    assert torch.isfinite(got).all()
    return float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max()) or 1e-30
