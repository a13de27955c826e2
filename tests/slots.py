"""Compare a slot's KV cache with a fresh prefill of the same ids."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from codespec.backends.language_model import Rows
from codespec.backends.torch.model import TorchModel


def gap_to_prefill(model: TorchModel, slot: int, ids: Sequence[int], twin: TorchModel, limit: int) -> float:
    """Return the largest difference between a slot's keys and values and those of a prefill of `ids` in a twin model.

    0.0 means equal bit for bit; otherwise the value is relative to the largest value of its layer. `limit` is the
    length the sequence may grow to, which some rotary embeddings depend on.
    """
    assert model.cache is not None
    twin.allocate(1, max(limit, len(ids), 1))
    assert twin.cache is not None
    twin.admit(0, limit)
    if ids:
        twin.forward([Rows(0, 0, ids)])
    worst = 0.0
    for layer in model.shapes:
        pairs = zip(model.cache.read(layer, slot, len(ids)), twin.cache.read(layer, 0, len(ids)), strict=True)
        worst = max([worst, *(_gap(held, fresh) for held, fresh in pairs if ids)])
    return worst


def _gap(held: torch.Tensor, fresh: torch.Tensor) -> float:
    if torch.equal(held, fresh):
        return 0.0
    return float((held.float() - fresh.float()).abs().max() / fresh.float().abs().max())
