"""Linear layers with weights packed once for the CPU's matrix kernels. Knows shapes and dtypes, nothing of models.

torch's plain bfloat16 product repacks the weight at every call, and its float32 product changes kernels with the number
of rows. The packed product (the op that Inductor's freezing emits) does neither: measured 1.5-1.8 x faster in bfloat16,
and a row's bits do not depend on how many rows it is computed with (MODELS.md, last section). One row alone may take
another kernel, so it is padded to two. Of a model that no cache holds, five or six rows are often computed sooner than
one or two, so few rows are padded to what is measured to be fastest, the same number in all its layers. And oneDNN
compiles and keeps a kernel for every number of rows and every matrix, 0.2 to 0.6 MB and half a millisecond each, so
many are padded to one of few numbers.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from statistics import median

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from codespec.models.huge_pages import ask_huge_pages

PROBE_ROWS = (1, 2, 3, 4, 5, 6, 8, 17, 64)
FEW_ROWS = 16
UNCACHED = 64 << 20  # bytes of a model: beyond that each step reads its weights from memory
LARGE = 1 << 20  # bytes of a matrix that is worth measuring
PADDED = (4, 5, 6)  # rows that may be computed sooner than one or two
_LEAST_ROWS: dict[object, int] = {}  # by the matrices of a model, measured once


class PackedLinear(nn.Module):
    """`nn.Linear` over a packed weight; [*, in] -> [*, out]. At least `least_rows` rows are computed."""

    def __init__(self, weight: Tensor, bias: Tensor | None, exact: bool) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self.bias = bias
        self.least_rows = 2 if exact else 1

    def forward(self, inputs: Tensor) -> Tensor:
        """Products of every row with the packed weight."""
        flat = inputs.dim() == 2  # each needless view costs a small product a tenth of its time
        rows = inputs if flat else inputs.reshape(-1, self.in_features)
        count = rows.shape[0]
        computed = max(self.least_rows, padded_rows(count)) if count else 0
        if computed > count:
            rows = rows.expand(computed, -1) if count == 1 else nn.functional.pad(rows, (0, 0, 0, computed - count))
            out = self.multiply(rows)[:count]
        else:
            out = self.multiply(rows)
        return out if flat else out.reshape(*inputs.shape[:-1], self.out_features)

    def multiply(self, rows: Tensor) -> Tensor:
        """The product of just these rows [rows, in]."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return out


def measure_least_rows(layers: Mapping[PackedLinear, int], least: int, repeats: int = 9) -> int:
    """The one of PADDED at which a step's products are computed soonest together, if sooner than `least` rows; else
    that. `layers` tells how many of each kind a step has; a weight comes from memory each time, as in a step.
    """
    others = torch.ones(UNCACHED // 4)
    total = dict.fromkeys((least, *PADDED), 0.0)
    for layer, times in layers.items():
        rows = torch.ones(max(PADDED), layer.in_features, dtype=layer.packed.dtype)
        taken: dict[int, list[float]] = {count: [] for count in total}
        for _ in range(repeats):  # in turns, so that a busy moment does not fall on one of them
            for count, found in taken.items():
                others.sum()
                began = time.perf_counter()
                layer.multiply(rows[:count])
                found.append(time.perf_counter() - began)
        for count, found in taken.items():
            total[count] += times * median(found)
    return min(total, key=total.__getitem__)


def padded_rows(count: int) -> int:
    """How many rows are computed for `count`: that many up to FEW_ROWS, above at most an eighth more, eight numbers an
    octave.
    """
    if count <= FEW_ROWS:
        return count
    step = 1 << (count - 1).bit_length() - 4
    return -(-count // step) * step


def can_pack(dtype: torch.dtype) -> str:
    """Checks on a small product that the packed op is there, right and row-invariant; returns "" or what is wrong."""
    if not torch.backends.mkldnn.is_available():
        return "this torch build has no oneDNN"
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).to(dtype)
    rows = torch.randn(max(PROBE_ROWS), 64, generator=generator).to(dtype)
    try:
        layer = PackedLinear(weight, None, exact=True)
        whole = layer(rows)
        parts = [layer(rows[:count]) for count in PROBE_ROWS]
    except (RuntimeError, AttributeError) as error:
        return f"torch's packed product is not usable ({str(error).splitlines()[0]})"
    near = 1e-3 if dtype == torch.float32 else 0.1
    if not torch.allclose(whole.float(), rows.float() @ weight.float().T, atol=near, rtol=near / 2):
        return "torch's packed product is wrong on this processor"
    if any(not torch.equal(part, whole[: part.shape[0]]) for part in parts):
        return "torch's packed product depends on the number of rows on this processor"
    return ""


def pack_linears(model: nn.Module, exact: bool) -> int:
    """Replaces every linear layer of the model in place, but for small ones that are computed sooner as they are where
    rows need not be `exact`; returns how many it tried. The plain weights are freed unless tied.
    """
    packed: dict[int, PackedLinear] = {}
    uncached = sum(weight.numel() * weight.element_size() for weight in model.parameters()) >= UNCACHED
    for parent in [m for m in model.modules() if m._modules]:  # a list of the layers too would hold all plain weights
        for name, child in list(parent._modules.items()):  # named_children leaves out a second name of a layer
            if type(child) is nn.Linear or type(child) is Conv1D:
                if id(child) not in packed:
                    packed[id(child)] = _pack(child, exact)
                if exact or not _is_soonest_plain(child, packed[id(child)]):
                    setattr(parent, name, packed[id(child)])
    if uncached:
        _suit_memory(packed.values())
    return len(packed)


def _pack(layer: nn.Module, exact: bool) -> PackedLinear:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    bias = layer.bias if isinstance(layer.bias, Tensor) else None
    if isinstance(layer, Conv1D):  # GPT-2 keeps its weights the other way round
        weight = weight.t()
    return PackedLinear(weight, None if bias is None else bias.detach(), exact)


def _is_soonest_plain(layer: nn.Module, packed: PackedLinear, repeats: int = 20) -> bool:
    """Whether one row by a small matrix is computed sooner by torch's own product: what a call of the packed one costs
    is more than all the sums.
    """
    if not isinstance(layer, nn.Linear) or layer.weight.numel() * layer.weight.element_size() >= LARGE:
        return False
    rows = torch.ones(1, layer.in_features, dtype=layer.weight.dtype)
    taken: dict[nn.Module, list[float]] = {layer: [], packed: []}
    for _ in range(repeats):
        for product, found in taken.items():
            began = time.perf_counter()
            product(rows)
            found.append(time.perf_counter() - began)
    return median(taken[layer]) < median(taken[packed])


def _suit_memory(layers: Collection[PackedLinear]) -> None:
    """Large pages for the layers of a model that no cache holds, and the rows that are fastest."""
    kinds: dict[tuple[int, int], list[PackedLinear]] = {}
    for layer in layers:
        nbytes = torch.ops.mkldnn._nbytes(layer.packed)
        if nbytes >= LARGE:
            ask_huge_pages(torch.ops.mkldnn.data_ptr(layer.packed), nbytes)
            kinds.setdefault((layer.out_features, layer.in_features), []).append(layer)
    if not kinds:
        return
    some = {of_a_kind[0]: len(of_a_kind) for of_a_kind in kinds.values()}
    least, dtype = min(layer.least_rows for layer in some), next(iter(some)).packed.dtype
    threads = torch.get_num_threads()
    key = (frozenset((size, len(of_a_kind)) for size, of_a_kind in kinds.items()), least, dtype, threads)
    if key not in _LEAST_ROWS:
        _LEAST_ROWS[key] = measure_least_rows(some, least)
    for layer in [layer for of_a_kind in kinds.values() for layer in of_a_kind]:
        layer.least_rows = max(layer.least_rows, _LEAST_ROWS[key])
