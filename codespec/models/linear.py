"""Linear layers for a CPU: weights packed once for its matrix kernels. Knows shapes and dtypes, no models.

`TiledLinear` is called with the model's shape of call. torch's plain bfloat16 product repacks the weight at every call;
the packed one (the op that Inductor's freezing emits) does not, and was measured 1.5-1.8 x faster. Where a processor
has no packed product for a dtype, the plain one is called in the same shape, so that `exact` holds there too. A step
reads every weight once, and with pages of 4 KB the processor looks up the address of each page anew, in a virtual
machine twice over: matrices of a 0.5B model were read 4-10 % faster from pages of 2 MB (lab/LOG.md).
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Collection, Sequence
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from codespec.models.call_shape import FAST, UNTRIED, CallShape
from codespec.models.linear_layers import replace_linears, weight_and_bias

UNCACHED = 64 << 20  # bytes of a model from which each step reads its weights from memory
LARGE = 1 << 20  # bytes of a matrix that is worth measuring
HUGE = 64_000_000  # values of a matrix that is tried with few rows only, because few go through it
PADDED = (4, 5, 6)  # rows that may be computed faster than one or two
TURNS = 5
CLEARLY = 0.95  # of the time: less would follow the noise
# With AMX a NaN in one row reaches other rows where the depth is no multiple of this (oneDNN issue 5717).
DEPTH_UNIT = 32
PAGE = 2 << 20
ADVICE = (14, 25)  # MADV_HUGEPAGE: from now on; MADV_COLLAPSE (Linux 6.1): and what is there already, at once


class TiledLinear(nn.Module):
    """`nn.Linear` in calls of one shape; [*, in] -> [*, out]. `packed` is the weight in the kernel's own layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None, calls: CallShape, packed: bool = True) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.calls = calls
        self.bias = bias
        self.missing = -self.in_features % DEPTH_UNIT if weight.element_size() < torch.float32.itemsize else 0
        self.dtype = weight.dtype
        self.weight = self.packed = None
        if packed:
            padded = pad(weight.detach(), (0, self.missing)) if self.missing else weight.detach()
            self.packed = torch.ops.mkldnn._reorder_linear_weight(padded.contiguous(), None)
        else:
            self.weight, self.missing = nn.Parameter(weight.detach(), requires_grad=False), 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Products of every row with the weight."""
        flat = inputs.dim() == 2  # each needless view costs a small product a tenth of its time
        rows = inputs if flat else inputs.reshape(-1, self.in_features)
        count = rows.shape[0]
        most = self.calls.most_rows(self.is_huge)
        out = torch.cat([self._call(part) for part in rows.split(most)]) if 0 < most < count else self._call(rows)
        return out if flat else out.reshape(*inputs.shape[:-1], self.out_features)

    def _call(self, rows: Tensor) -> Tensor:
        """The product of rows that fit into one call, padded to its shape."""
        count = rows.shape[0]
        computed = self.calls.computed(count)
        if computed == count and not self.missing:
            return self.multiply(rows)
        one = count == 1 and not self.missing
        padded = rows.expand(computed, -1) if one else pad(rows, (0, self.missing, 0, computed - count))
        return self.multiply(padded)[:count]

    def multiply(self, rows: Tensor) -> Tensor:
        """The product of just these rows [rows, in + missing] in one call."""
        if self.packed is None:
            return linear(rows, self.weight, self.bias)  # type: ignore[arg-type]
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of its weight."""
        return self.out_features * self.in_features * self.dtype.itemsize

    @property
    def is_huge(self) -> bool:
        """Whether it is an output head of a large vocabulary, or as large as one."""
        return self.out_features * self.in_features > HUGE

    @property
    def kind(self) -> tuple[int, int, bool]:
        """What decides its kernels, beside rows and dtype."""
        return self.out_features, self.in_features, self.bias is not None


def measure_least_rows(kinds: Sequence[Sequence[TiledLinear]], least: int) -> int:
    """The one of PADDED at which a step's products are fastest together, if clearly faster than `least` rows; else
    `least`. `kinds` are the layers of a step, equal ones together: each call takes another one, so that its weight
    comes from memory as in a step.
    """
    total = dict.fromkeys((least, *(rows for rows in PADDED if rows > least)), 0.0)
    for alike in kinds:
        some = [alike[turn % len(alike)] for turn in range(TURNS)]
        rows = torch.ones(max(*PADDED, least), some[0].in_features + some[0].missing, dtype=some[0].dtype)
        taken: dict[int, list[float]] = {count: [] for count in total}
        for turn in range(TURNS):  # in turns, so that a busy moment does not fall on one of them
            for offset, (count, found) in enumerate(taken.items()):
                layer = some[(turn + offset) % TURNS]
                began = time.perf_counter()
                layer.multiply(rows[:count])
                found.append(time.perf_counter() - began)
        for count, found in taken.items():
            total[count] += len(alike) * median(found)
    best = min(total, key=total.__getitem__)
    return best if total[best] < CLEARLY * total[least] else least


def can_pack(dtype: torch.dtype) -> str:
    """Checks on a small product that the packed op is there and right; returns "" or what is wrong. Whether it is
    batch-invariant is tried on the model itself (`models.call_search`).
    """
    if not torch.backends.mkldnn.is_available():
        return "this torch build has no oneDNN"
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).to(dtype)
    rows = torch.randn(24, 64, generator=generator).to(dtype)
    try:
        out = TiledLinear(weight, None, UNTRIED)(rows)
    except (RuntimeError, AttributeError) as error:
        return f"torch's packed product is not usable ({str(error).splitlines()[0]})"
    near = 1e-3 if dtype == torch.float32 else 0.1
    if not torch.allclose(out.float(), rows.float() @ weight.float().T, atol=near, rtol=near / 2):
        return "torch's packed product is wrong on this processor"
    return ""


def tile_linears(model: nn.Module, calls: CallShape, packed: bool) -> int:
    """Replaces every linear layer of the model in place; in FAST, small ones that are faster as they are stay. Returns
    how many it tried. Plain weights are freed unless tied.
    """
    uncached = sum(weight.numel() * weight.element_size() for weight in model.parameters()) >= UNCACHED

    def make(layer: nn.Module) -> nn.Module:
        weight, bias = weight_and_bias(layer)
        tiled = TiledLinear(weight, None if bias is None else bias.detach(), calls, packed)
        return layer if calls is FAST and _is_soonest_plain(layer, tiled) else tiled

    made = replace_linears(model, make)
    if uncached and packed:
        _ask_pages([layer for layer in made if isinstance(layer, TiledLinear)])
    return len(made)


def tiled_linears(model: nn.Module) -> list[TiledLinear]:
    """The tiled layers of the model, each once."""
    return [module for module in model.modules() if isinstance(module, TiledLinear)]


def large_kinds(layers: Collection[TiledLinear]) -> list[list[TiledLinear]]:
    """The layers that are worth measuring, equal ones together, without a huge head; none of a model that fits into the
    processor's caches.
    """
    if sum(layer.nbytes for layer in layers) < UNCACHED:
        return []
    kinds: dict[object, list[TiledLinear]] = {}
    for layer in layers:
        if layer.nbytes >= LARGE and not layer.is_huge:
            kinds.setdefault(layer.kind, []).append(layer)
    return list(kinds.values())


def _is_soonest_plain(layer: nn.Module, tiled: TiledLinear, repeats: int = 20) -> bool:
    """Whether torch's own product of one row by a small matrix is faster: a call of the packed one may cost more than
    all the sums.
    """
    if not isinstance(layer, nn.Linear) or layer.weight.numel() * layer.weight.element_size() >= LARGE:
        return False
    rows = torch.ones(1, layer.in_features, dtype=layer.weight.dtype)
    taken: dict[nn.Module, list[float]] = {layer: [], tiled: []}
    for _ in range(repeats):
        for product, found in taken.items():
            began = time.perf_counter()
            product(rows)
            found.append(time.perf_counter() - began)
    return median(taken[layer]) < median(taken[tiled])


def _ask_pages(layers: Collection[TiledLinear]) -> None:
    """Large pages for the packed weights of a model that no cache holds."""
    for layer in layers:
        nbytes = torch.ops.mkldnn._nbytes(layer.packed)
        if nbytes >= LARGE:
            ask_huge_pages(torch.ops.mkldnn.data_ptr(layer.packed), nbytes)


def ask_huge_pages(address: int, size: int) -> None:
    """Asks for pages of 2 MB within `size` bytes from `address`, whose content stays. A hint: a system that has none to
    give leaves the memory as it is.
    """
    begin, end = -(-address // PAGE) * PAGE, (address + size) // PAGE * PAGE
    if sys.platform == "linux" and begin < end:
        library = ctypes.CDLL(None)
        for advice in ADVICE:
            library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
