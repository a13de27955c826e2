"""Check that weights, caches, steps and graphs fit into a device's memory before allocating them.

A refusal is one sentence with the numbers and the setting to change. Sizes of caches and weights are exact. The memory
of a running step is an upper bound, and so is the memory that piecewise graphs keep between their parts. Driver memory,
which can't be queried beforehand, gets an allowance (GRAPH_LAYER, RUNTIME). On a CPU only int8 weights are checked;
other allocations that do not fit fail with their own error.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from codespec.errors import ModelError
from codespec.models.cache import CAPACITY_UNIT, cache_bytes
from codespec.models.cuda.graphs import Buckets
from codespec.store.machine import available_memory

if TYPE_CHECKING:
    from codespec.models.language_model import LanguageModel

GRAPH_LAYER = 256 << 10  # bytes per layer of a graph
RUNTIME = 256 << 20  # workspaces of the matrix library, compiled kernels
FLOAT = torch.float32.itemsize
WIDTHS = 6  # activations of the model's width in memory at once
INNER = 3  # activations of the feed-forward's width: the gate, its input, their product
ROUNDED = 512  # torch's allocation granularity on a GPU, in bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """Memory that something needs, and the setting that reduces it."""

    what: str
    nbytes: int
    mend: str


@dataclass(frozen=True, slots=True)
class Need:
    """A loaded model's needs: `slots` of `capacity` positions, and steps of `rows`, `kept` of which produce logits."""

    model: LanguageModel
    slots: int
    capacity: int
    rows: int
    kept: int


def make_room(needs: Sequence[Need], graph_rows: int, tell: Callable[[str], None], notes: MutableSequence[str]) -> None:
    """Allocate the models' slots and capture their graphs. Raise ModelError if they do not fit.

    `tell` receives progress messages; `notes` collects what could not be captured. Piecewise graphs are needed only if
    capturing whole ones fails, so their memory is not required: if it is missing, piecewise capture is not tried.
    """
    left: dict[torch.device, int | None] = {}
    for device in dict.fromkeys(need.model.device for need in needs):
        here = [need for need in needs if need.model.device == device]
        left[device] = demand_room([c for need in here for c in step_claims(need, graph_rows)], free_memory(device))
    for need in needs:
        need.model.allocate(need.slots, need.capacity, graph_rows)
    torch.cuda.empty_cache()  # torch can't release cached memory (fused weights) while capturing
    for need in needs:
        claim, spare = parts_claim(need, graph_rows), left[need.model.device]
        problem = _capture(need.model, lack(claim, spare), tell)
        if spare is not None and need.model.graphs == "parts":
            left[need.model.device] = spare - claim.nbytes
        if problem:
            notes.append(f"{need.model.spec.name} {problem}")


def _capture(model: LanguageModel, no_parts: str, tell: Callable[[str], None]) -> str:
    def progress(done: int, of: int) -> None:
        tell(f"capturing graph {done + 1} of {of} of {model.spec.name}")

    return model.capture(no_parts, progress)


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes on a device; None for a CPU."""
    if device.type != "cuda":
        return None
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def demand_room(claims: Sequence[Claim], free: int | None, where: str = "device memory") -> int | None:
    """Return what the claims leave of `free` bytes.

    Raise ModelError, with the largest claim's mend, if they exceed it.
    """
    needed = sum(claim.nbytes for claim in claims)
    if free is None or needed <= free:
        return None if free is None else free - needed
    ordered = sorted(claims, key=lambda claim: -claim.nbytes)
    parts = ", ".join(f"{claim.what} {_gb(claim.nbytes)}" for claim in ordered)
    raise ModelError(f"{_gb(free)} of {where} are free and {_gb(needed)} are needed ({parts})", ordered[0].mend)


def demand_memory(name: str, nbytes: int) -> None:
    """Raise ModelError if this machine can't hold `nbytes` bytes of int8 weights."""
    claim = Claim(f"int8 weights of {name}", nbytes, "choose a smaller model, or close other programs")
    demand_room([claim], available_memory(), "memory")


def lack(claim: Claim, left: int | None) -> str:
    """Return "" if an optional claim fits into the memory left, else the shortage and how to reduce it."""
    if left is None or claim.nbytes <= left:
        return ""
    return f"{claim.what} need {_gb(claim.nbytes)} more where {_gb(left)} are left ({claim.mend})"


def weights_claim(name: str, parameters: int, dtype: torch.dtype, shares: int = 1) -> Claim:
    """Return the claim for weights that are not loaded yet, or for this process's share of them."""
    mend = "choose a smaller model, dtype bfloat16, or more processors with tensor_parallel"
    return Claim(f"weights of {name}", parameters * dtype.itemsize // shares, mend)


def step_claims(need: Need, graph_rows: int) -> list[Claim]:
    """Return the memory that a loaded model needs beside its weights."""
    model, name = need.model, need.model.spec.name
    capacity, buckets = _buckets(need, graph_rows)
    step = step_bytes(model, max(need.rows, *buckets.rows, 1), max(need.kept, *buckets.rows, 1), capacity)
    cache = cache_bytes(model.shapes, need.slots + 1, capacity, model.dtype, model.feature_shape, model.states)
    most = max(buckets.rows, default=0)  # graphs share one pool, sized by the largest
    graphs = len(buckets.largest_first()) * len(model.shapes) * GRAPH_LAYER + graph_bytes(model, most, capacity)
    prompts = f"{need.slots} prompts of {capacity} tokens"
    return [
        Claim(f"cache of {name}", cache, f"lower max_batch, cache_mb or context ({prompts})"),
        Claim(f"steps of {name}", step + RUNTIME, "lower prefill_chunk, max_batch or draft_tokens"),
        Claim(f"graphs of {name}", graphs, f"lower graph_rows ({graph_rows})"),
    ]


def parts_claim(need: Need, graph_rows: int) -> Claim:
    """Return the memory that piecewise graphs need beyond whole ones."""
    _, buckets = _buckets(need, graph_rows)
    nbytes = sum(parts_bytes(need.model, bucket.rows) for bucket in buckets.largest_first())
    return Claim("graphs in parts", nbytes, f"lower graph_rows ({graph_rows})")


def parts_bytes(model: LanguageModel, rows: int) -> int:
    """Return an upper bound for what one bucket keeps between its parts.

    These are the rows' frequencies, and for each layer the queries and keys, the fused product that they and the values
    are slices of, and the result of attention.
    """
    size = model.dtype.itemsize
    angles = max((key_size for _, key_size, _ in model.shapes.values()), default=0) // 2
    found = _rounded(rows * angles * FLOAT) + _rounded(rows * FLOAT)
    for kv_heads, key_size, value_size in model.shapes.values():
        heads = model.groups * kv_heads
        queries, keys = heads * key_size, kv_heads * key_size
        widths = (queries, keys, queries + keys + kv_heads * value_size, heads * value_size)
        found += sum(_rounded(rows * width * size) for width in widths)
    return found


def graph_bytes(model: LanguageModel, rows: int, capacity: int) -> int:
    """Return an upper bound for the memory shared by graphs of up to `rows` rows, all with logits."""
    return rows * (_row_bytes(model, capacity) + model.spec.vocab_size * model.dtype.itemsize)


def step_bytes(model: LanguageModel, rows: int, kept: int, capacity: int) -> int:
    """Return an upper bound for a running step's peak memory.

    Counts its rows' activations, and logits once in the model's dtype and twice in float32.
    """
    return rows * _row_bytes(model, capacity) + kept * model.spec.vocab_size * (model.dtype.itemsize + 2 * FLOAT)


def _row_bytes(model: LanguageModel, capacity: int) -> int:
    """Return the bytes of a row's activations and of attention's partial sums for each block of keys."""
    widest = (WIDTHS * model.spec.hidden_size + INNER * model.spec.inner_size) * model.dtype.itemsize
    heads = model.groups * max((heads for heads, _, _ in model.shapes.values()), default=0)
    sums = (
        heads
        * (2 + max((size for _, _, size in model.shapes.values()), default=0))
        * (capacity // CAPACITY_UNIT)
        * FLOAT
    )
    return widest + sums


def _buckets(need: Need, graph_rows: int) -> tuple[int, Buckets]:
    """Return the capacity that the cache will have, and its buckets."""
    capacity = need.capacity + -need.capacity % CAPACITY_UNIT
    return capacity, Buckets(graph_rows, capacity)


def _rounded(nbytes: int) -> int:
    return nbytes + -nbytes % ROUNDED


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
