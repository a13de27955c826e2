"""Check that weights, caches, steps and graphs fit into a device's memory before allocating them.

Sizes of caches and weights are exact, the memory of a running step is an upper bound, and the driver's memory, which
can't be queried beforehand, is estimated (GRAPH_LAYER, RUNTIME). On a CPU, only the weights of a GGUF file are checked.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codespec.backends.language_model import CAPACITY_UNIT, LanguageModel
from codespec.errors import ModelError
from codespec.store.machine import available_memory

if TYPE_CHECKING:  # models on the host do not need torch
    import torch

    from codespec.backends.torch.model import TorchModel

GRAPH_LAYER = 256 << 10  # bytes per layer of a captured graph
RUNTIME = 256 << 20  # bytes for workspaces of the matrix library and compiled kernels
FLOAT = 4  # bytes of a float32
WIDTHS = 6  # activations of the model's width that are in memory at once
INNER = 3  # activations of the feed-forward layer's width that are in memory at once


@dataclass(frozen=True, slots=True)
class Claim:
    """A memory requirement, and the fix that an error suggests to reduce it."""

    label: str
    nbytes: int
    fix: str


@dataclass(frozen=True, slots=True)
class Need:
    """A loaded model, its number of slots with `capacity` positions each, and the maximum number of rows per step.

    `kept` is the maximum number of rows per step that produce logits.
    """

    model: LanguageModel
    slots: int
    capacity: int
    rows: int
    kept: int


def make_room(
    needs: Sequence[Need], graph_rows: int, report: Callable[[str], None], notes: MutableSequence[str]
) -> None:
    """Allocate the models' slots and capture their graphs. Raise ModelError if memory is insufficient.

    `report` receives progress messages, and the reasons why graphs could not be captured are appended to `notes`.
    """
    claims: dict[torch.device, list[Claim]] = {}
    for need in needs:
        if need.model.on_device:
            claims.setdefault(need.model.device, []).extend(step_claims(need, graph_rows))
    for device, claimed in claims.items():
        demand_room(claimed, free_memory(device))
    for need in needs:
        need.model.allocate(need.slots, need.capacity, graph_rows)
    if claims:
        import torch

        torch.cuda.empty_cache()  # torch can't release cached memory (fused weights) while capturing
    for need in needs:
        name = need.model.spec.name

        def progress(done: int, total: int, name: str = name) -> None:
            report(f"capturing graph {done + 1} of {total} of {name}")

        if problem := need.model.capture(progress):
            notes.append(f"{name} {problem}")


def free_memory(device: torch.device) -> int | None:
    """Return the number of free bytes on a device, or None for a CPU."""
    import torch

    if device.type != "cuda":
        return None
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def demand_room(claims: Sequence[Claim], free: int | None, where: str = "device memory") -> None:
    """Raise ModelError with the fix of the largest claim if the claims exceed `free` bytes (None: no limit)."""
    needed = sum(claim.nbytes for claim in claims)
    if free is None or needed <= free:
        return
    ordered = sorted(claims, key=lambda claim: -claim.nbytes)
    parts = ", ".join(f"{claim.label} {_gb(claim.nbytes)}" for claim in ordered)
    raise ModelError(f"{_gb(free)} of {where} is free, but {_gb(needed)} is needed ({parts})", ordered[0].fix)


def demand_memory(name: str, nbytes: int) -> None:
    """Raise ModelError if this machine does not have enough free memory for `nbytes` bytes of weights."""
    claim = Claim(f"weights of {name}", nbytes, "choose a smaller model, or close other programs")
    demand_room([claim], available_memory(), "memory")


def step_claims(need: Need, graph_rows: int) -> list[Claim]:
    """Return a loaded model's memory requirements for its cache, steps and graphs."""
    from codespec.backends.torch.cuda.graphs import Buckets
    from codespec.backends.torch.model import TorchModel

    model, name = need.model, need.model.spec.name
    assert isinstance(model, TorchModel)
    capacity = need.capacity + -need.capacity % CAPACITY_UNIT  # rounded up as by the cache
    buckets = Buckets(graph_rows, capacity)
    largest, row, logits = max(buckets.rows, default=0), _row_bytes(model, capacity), model.spec.vocab_size
    cache = (need.slots + 1) * model.slot_bytes(capacity)
    # A step holds its logits once in the model's dtype and twice in float32.
    step = max(need.rows, largest, 1) * row
    step += max(need.kept, largest, 1) * logits * (model.dtype.itemsize + 2 * FLOAT)
    graphs = largest * (row + logits * model.dtype.itemsize)  # they share one pool, sized by the largest
    graphs += len(buckets.largest_first()) * len(model.shapes) * GRAPH_LAYER
    prompts = f"{need.slots} prompts of {capacity} tokens"
    return [
        Claim(f"cache of {name}", cache, f"lower max_batch, cache_mb or context ({prompts})"),
        Claim(f"steps of {name}", step + RUNTIME, "lower prefill_chunk, max_batch or draft_tokens"),
        Claim(f"graphs of {name}", graphs, f"lower graph_rows ({graph_rows})"),
    ]


def _row_bytes(model: TorchModel, capacity: int) -> int:
    """Return the size in bytes of one row's activations and of its partial attention sums, one per block of keys."""
    activations = (WIDTHS * model.spec.hidden_size + INNER * model.spec.inner_size) * model.dtype.itemsize
    heads = model.groups * max((kv_heads for kv_heads, _, _ in model.shapes.values()), default=0)
    widest = max((value_size for _, _, value_size in model.shapes.values()), default=0)
    return activations + heads * (2 + widest) * (capacity // CAPACITY_UNIT) * FLOAT


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
