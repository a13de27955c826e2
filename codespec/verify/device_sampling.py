"""Choose the target's tokens for many rows on the device that holds the logits, and copy only the ids to the host.

The formulas of `verify.sampling` are applied to the whole vocabulary instead of only to the ids that may be chosen,
because a GPU hashes 152,000 tokens faster than it copies one row of logits to the host. The token chosen for a row
depends on that row alone. The random bits equal those on the host, but logarithms and sums may round differently, so a
sampled text is reproducible only on devices of the same kind.
"""

from __future__ import annotations

import collections.abc
import math

import torch
from torch import Tensor

from codespec.api.types import CompletionRequest
from codespec.backends.language_model import Logits
from codespec.verify.sampling import LOW, SampledRow, row_key, token_hashes

AT_ONCE = 32  # rows whose noise is computed together: a few arrays of 152,000 8-byte numbers per row
SIGN = 1 << 63


class DeviceSampler:
    """Sampler for one vocabulary on one device, where the token hashes are stored."""

    def __init__(self, token_bytes: list[bytes], device: torch.device) -> None:
        hashes = token_hashes(token_bytes)
        self._hashes = torch.from_numpy(hashes.view("int64").copy()).to(device)
        self._low, self._high = self._hashes & LOW, _shifted(self._hashes, 32)

    @torch.inference_mode()
    def choose(self, logits: Tensor, asked: collections.abc.Sequence[SampledRow]) -> Tensor:
        """Return one id per row [rows] of float32 logits [rows, vocabulary], which are modified in place."""
        for row, one in zip(logits, asked, strict=True):
            _prepare(row, one)
        chosen = logits.argmax(dim=1)
        sampled = [number for number, one in enumerate(asked) if one.request.temperature > 0.0]
        for start in range(0, len(sampled), AT_ONCE):
            some = sampled[start : start + AT_ONCE]
            numbers = torch.tensor(some, device=logits.device)
            chosen[numbers] = self._noisy(logits[numbers], [asked[number] for number in some])
        return chosen

    @torch.inference_mode()
    def draft(self, logits: Logits, asked: collections.abc.Sequence[SampledRow]) -> list[tuple[int, float]]:
        """Return one id per row and its probability before penalty and filters. May modify the logits."""
        assert isinstance(logits, Tensor)
        probabilities = logits.softmax(dim=1)
        plain = all(one.request.temperature == 0.0 and one.request.repetition_penalty == 1.0 for one in asked)
        chosen = logits.argmax(dim=1) if plain else self.choose(logits, asked)
        both = torch.stack([chosen.double(), probabilities.gather(1, chosen[:, None])[:, 0].double()])  # one copy
        return [(int(token), chance) for token, chance in zip(*both.tolist(), strict=True)]

    def _noisy(self, rows: Tensor, asked: collections.abc.Sequence[SampledRow]) -> Tensor:
        requests = [one.request for one in asked]
        heat = torch.tensor([[request.temperature] for request in requests], dtype=torch.float64, device=rows.device)
        keys = [row_key(one.request.seed, one.choice, one.position.offset, one.position.silent) for one in asked]
        noise = gumbel(keys, self._hashes, self._low, self._high)
        scores = rows.double() / heat + noise[:, : rows.shape[1]]
        return scores.masked_fill_(~survivors(rows, requests), -torch.inf).argmax(dim=1)


def _prepare(row: Tensor, one: SampledRow) -> None:
    penalty, position = one.request.repetition_penalty, one.position
    if penalty != 1.0 and position.before:
        seen = torch.tensor(sorted(set(position.before)), device=row.device)
        scores = row[seen]
        row[seen] = torch.where(scores < 0, scores * penalty, scores / penalty)
    if position.allowed is not None:
        kept = torch.tensor(position.allowed, dtype=torch.long, device=row.device)
        scores = row[kept]
        row.fill_(-torch.inf)
        row[kept] = scores


def survivors(rows: Tensor, requests: collections.abc.Sequence[CompletionRequest]) -> Tensor:
    """Return a mask of the ids that pass top-k, top-p and min-p filtering, for prepared rows [rows, vocabulary]."""
    kept, size = torch.ones_like(rows, dtype=torch.bool), rows.shape[1]
    wide = max([request.top_k for request in requests if request.top_k < size], default=0)
    if wide:
        best = rows.topk(wide, dim=1).values
        last = [min(request.top_k, wide) - 1 if 0 < request.top_k < size else -1 for request in requests]
        edges = [best[row, at] if at >= 0 else rows.new_tensor(-torch.inf) for row, at in enumerate(last)]
        kept &= rows >= torch.stack(edges)[:, None]
    if any(request.top_p < 1.0 for request in requests):
        kept &= _nucleus(rows.masked_fill(~kept, -torch.inf), requests)
    if any(request.min_p > 0.0 for request in requests):
        nats = [r.temperature * math.log(r.min_p) if r.min_p > 0.0 else -math.inf for r in requests]
        kept &= rows >= rows.amax(dim=1, keepdim=True) + torch.tensor(nats, device=rows.device)[:, None]
    return kept


def _nucleus(rows: Tensor, requests: collections.abc.Sequence[CompletionRequest]) -> Tensor:
    """Return a mask of the fewest, likeliest ids whose probabilities sum to at least top_p; low ids win ties."""
    heat = torch.tensor([[request.temperature] for request in requests], device=rows.device)
    ordered, order = rows.sort(dim=1, descending=True, stable=True)
    weights = ((ordered - ordered[:, :1]) / heat).exp().double()
    ends = weights.cumsum(dim=1)
    shares = [[request.top_p if request.top_p < 1.0 else math.inf] for request in requests]
    wanted = torch.tensor(shares, dtype=torch.float64, device=rows.device) * ends[:, -1:]
    first = torch.arange(rows.shape[1], device=rows.device) == 0
    return torch.zeros_like(rows, dtype=torch.bool).scatter_(1, order, (ends - weights < wanted) | first)


def gumbel(keys: collections.abc.Sequence[int], hashes: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the noise [keys, vocabulary] of `sampling.gumbel`; `low` and `high` are the halves of `hashes`."""
    key = torch.tensor([[_signed(key)] for key in keys], device=hashes.device)
    bits = low ^ (key & LOW)
    bits = (bits * 0x7FEB352D) & LOW
    bits ^= bits >> 15
    bits ^= high
    bits = (bits * (_shifted(key, 32) | 1)) & LOW
    uniforms = (((bits << 20) | _shifted(_mix(hashes ^ key), 44)).double() + 0.5) * 2.0**-52
    return uniforms.log_().neg_().log_().neg_()


def _mix(value: Tensor) -> Tensor:
    """Apply SplitMix64's finalizer (Steele, Lea and Flood 2014) to signed integers, which wrap as unsigned ones do."""
    value = value + _signed(0x9E3779B97F4A7C15)
    value = (value ^ _shifted(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, count: int) -> Tensor:
    """Shift right logically."""
    return (value >> count) & ((1 << (64 - count)) - 1)


def _signed(value: int) -> int:
    """Return the signed integer that has the same 64 bits as `value`."""
    return (value ^ SIGN) - SIGN
