"""Replace layers whose weights are split over processes by plain layers over this process's share.

transformers loads each process's share according to the model's tensor-parallel plan. Here every split layer becomes a
smaller plain layer, with an all-reduce or all-gather if the plan requires one, so lean blocks, packed products and the
cache work on a share as on a whole model. In `exact` mode the parts of a sum are gathered and added in rank order,
because a ring's order depends on a row's position in the forward.
"""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from codespec.errors import ModelError

COLUMNS, ROWS, JOINED, EMBEDDING = "colwise", "rowwise", ("colwise_gather_output", "colwise_rep"), "embedding_rowwise"


class Summed(nn.Module):
    """A linear layer over a share of its inputs: [*, in / processes] -> [*, out], the sum over all processes."""

    def __init__(self, layer: nn.Linear, exact: bool) -> None:
        super().__init__()
        self.inner = plain(layer, biased=False)
        self.bias = None if layer.bias is None else local(layer.bias)
        self.exact = exact

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the sum, identical on every process."""
        total = add_up(self.inner(inputs), self.exact)
        return total if self.bias is None else total + self.bias


class Joined(nn.Module):
    """A linear layer that computes a share of its outputs and gathers them: [*, in] -> [*, out]."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.inner = plain(layer)
        self.widths = [int(width) for width in shares(layer.out_features)]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the gathered outputs, identical on every process."""
        own = self.inner(inputs)
        missing = max(self.widths) - own.shape[-1]
        padded = nn.functional.pad(own, (0, missing)).contiguous()
        parts = [torch.empty_like(padded) for _ in self.widths]
        dist.all_gather(parts, padded)
        return torch.cat([part[..., :width] for part, width in zip(parts, self.widths, strict=True)], dim=-1)


class SplitEmbedding(nn.Module):
    """An embedding of a share of the vocabulary: ids [*] -> [*, hidden], identical on every process."""

    def __init__(self, layer: nn.Embedding) -> None:
        super().__init__()
        self.weight = nn.Parameter(local(layer.weight), requires_grad=False)
        self.first = sum(shares(layer.num_embeddings)[: dist.get_rank()])

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids; each row is nonzero on one process only, so the order of the sum does not matter."""
        index = ids - self.first
        elsewhere = (index < 0) | (index >= self.weight.shape[0])
        rows = self.weight[index.masked_fill(elsewhere, 0)].masked_fill(elsewhere[..., None], 0.0)
        dist.all_reduce(rows)
        return rows


def add_up(part: Tensor, exact: bool) -> Tensor:
    """Sum all processes' parts; if `exact`, in float32 and in rank order."""
    part = part.contiguous()
    if not exact:
        dist.all_reduce(part)
        return part
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    total = parts[0].float()
    for other in parts[1:]:
        total += other
    return total.to(part.dtype)


def localize(network: nn.Module, exact: bool) -> None:
    """Replace every split layer in place. Raise ModelError for an unsupported split."""
    whole: Any = network
    plan: dict[str, str] = whole._tp_plan
    replaced: dict[int, nn.Module] = {}
    for parent_name, parent in list(network.named_modules()):
        for name, child in list(parent.named_children()):
            path = f"{parent_name}.{name}" if parent_name else name
            style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", path))
            if style is None and not _is_split(child):
                continue
            if id(child) not in replaced:
                replaced[id(child)] = _local_layer(child, style, path, exact)
            setattr(parent, name, replaced[id(child)])
    _tie(whole)


def _local_layer(layer: nn.Module, style: str | None, path: str, exact: bool) -> nn.Module:
    if isinstance(layer, nn.Linear) and style == COLUMNS:
        return plain(layer)
    if isinstance(layer, nn.Linear) and style == ROWS:
        return Summed(layer, exact)
    if isinstance(layer, nn.Linear) and style in JOINED:
        return Joined(layer)
    if isinstance(layer, nn.Embedding) and style == EMBEDDING:
        return SplitEmbedding(layer)
    raise ModelError(
        f"transformers splits {path} over processes in a way ({style}) that codespec does not support yet",
        "use tensor_parallel = 1 or another target",
    )


def _tie(network: Any) -> None:
    """Tie a joined head's weight to the embedding if the model ties them."""
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    if network.config.get_text_config().tie_word_embeddings and isinstance(head, Joined):
        head.inner.weight = embedding.weight


def plain(layer: nn.Linear, biased: bool = True) -> nn.Linear:
    """Return a plain linear layer over the local share of another layer's weight."""
    weight = local(layer.weight)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if biased and layer.bias is not None:
        linear.bias = nn.Parameter(local(layer.bias), requires_grad=False)
    return linear


def local(weight: Tensor) -> Tensor:
    """Return this process's part of a weight."""
    return weight.to_local().detach() if isinstance(weight, DTensor) else weight.detach()


def shares(size: int) -> list[int]:
    """Return the size of each process's part as torch splits an axis: even, rounded up, the last ones smaller."""
    each = -(-size // dist.get_world_size())
    return [max(0, min(each, size - rank * each)) for rank in range(dist.get_world_size())]


def _is_split(module: nn.Module) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in module.parameters(recurse=False))
