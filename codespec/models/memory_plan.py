"""Whether what is about to be made fits into a device's memory: asked before it is made, answered in one sentence with
the numbers and the setting to change. Knows sizes and models; knows no settings but the names it says.

Caches and weights are exact. What a step needs while it runs is a bound, graphs an allowance (GRAPH_LAYER, RUNTIME):
the driver does not say beforehand. On a CPU nothing is planned: what does not fit is told when it is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from codespec.errors import ModelError
from codespec.models.buckets import Buckets
from codespec.models.cache import CAPACITY_UNIT, cache_bytes

if TYPE_CHECKING:
    from codespec.models.language_model import LanguageModel

GRAPH_LAYER = 256 << 10  # bytes of a graph for each layer that it holds
RUNTIME = 256 << 20  # workspaces of the matrix library, compiled kernels
FLOAT = torch.float32.itemsize
WIDTHS = 6  # activations as wide as the model that stand in memory at once


@dataclass(frozen=True, slots=True)
class Claim:
    """Memory that something will take, and what makes it less."""

    what: str
    nbytes: int
    mend: str


@dataclass(frozen=True, slots=True)
class Need:
    """What a loaded model is to have: cache slots of `capacity` positions, and steps of up to `rows` rows of which
    `kept` have logits.
    """

    model: LanguageModel
    slots: int
    capacity: int
    rows: int
    kept: int


def make_room(needs: Sequence[Need], graph_rows: int, tell: Callable[[str], None], notes: MutableSequence[str]) -> None:
    """Allocates the models' slots and captures their graphs, if all that fits; ModelError if not. `tell` hears how far
    it is, `notes` what could not be captured.
    """
    for device in dict.fromkeys(need.model.device for need in needs):
        here = [need for need in needs if need.model.device == device]
        demand_room([claim for need in here for claim in step_claims(need, graph_rows)], free_memory(device))
    for need in needs:
        need.model.allocate(need.slots, need.capacity, graph_rows)
    for need in needs:
        name = need.model.spec.name

        def progress(done: int, of: int, name: str = name) -> None:
            tell(f"capturing graph {done + 1} of {of} of {name}")

        problem = need.model.capture(progress)
        if problem:
            notes.append(f"{name} {problem}")


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be had on a device; None for a CPU."""
    if device.type != "cuda":
        return None
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def demand_room(claims: Sequence[Claim], free: int | None) -> None:
    """Raises ModelError if the claims together are more than what is free; the largest says what to change."""
    needed = sum(claim.nbytes for claim in claims)
    if free is None or needed <= free:
        return
    ordered = sorted(claims, key=lambda claim: -claim.nbytes)
    parts = ", ".join(f"{claim.what} {_gb(claim.nbytes)}" for claim in ordered)
    raise ModelError(
        f"{_gb(free)} of device memory are free and {_gb(needed)} are needed ({parts}): {ordered[0].mend}."
    )


def weights_claim(name: str, parameters: int, dtype: torch.dtype, shares: int = 1) -> Claim:
    """Weights that are not loaded yet, or this process's share of them."""
    mend = "choose a smaller model, dtype bfloat16, or more processors with tensor_parallel"
    return Claim(f"weights of {name}", parameters * dtype.itemsize // shares, mend)


def step_claims(need: Need, graph_rows: int) -> list[Claim]:
    """What a loaded model takes beside its weights."""
    model, name = need.model, need.model.spec.name
    capacity = need.capacity + -need.capacity % CAPACITY_UNIT
    buckets = Buckets(graph_rows, capacity)
    step = step_bytes(model, max(need.rows, *buckets.rows, 1), max(need.kept, *buckets.rows, 1), capacity)
    cache = cache_bytes(model.shapes, need.slots + 1, capacity, model.dtype)
    graphs = len(buckets.largest_first()) * len(model.shapes) * GRAPH_LAYER
    prompts = f"{need.slots} prompts of {capacity} tokens"
    return [
        Claim(f"cache of {name}", cache, f"lower max_batch, cache_mb or context ({prompts})"),
        Claim(f"steps of {name}", step + RUNTIME, "lower prefill_chunk, max_batch or draft_tokens"),
        Claim(f"graphs of {name}", graphs, f"lower graph_rows ({graph_rows})"),
    ]


def step_bytes(model: LanguageModel, rows: int, kept: int, capacity: int) -> int:
    """A bound for what stands in memory at once while a step runs: activations, attention's partial sums (one for each
    block of keys), logits in the model's numbers and twice in float32.
    """
    config: Any = model.network.config
    text = config.get_text_config()
    inner: int = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    widest: int = (WIDTHS * text.hidden_size + 2 * inner) * model.dtype.itemsize
    heads = model.groups * max(heads for heads, _, _ in model.shapes.values())
    sums = heads * (2 + max(size for _, _, size in model.shapes.values())) * (capacity // CAPACITY_UNIT) * FLOAT
    return rows * (widest + sums) + kept * model.spec.vocab_size * (model.dtype.itemsize + 2 * FLOAT)


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
