"""Linear layers for a CPU, with weights packed once for its matrix kernels.

In exact mode `TiledLinear` calls them with one number of rows. torch's plain bfloat16 product repacks the weight at
every call; the packed op (which Inductor's freezing emits) does not, and was measured 1.5-1.8 x faster. If a processor
has no packed product for a dtype, the plain one is called with as many rows, so that `exact` holds there too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from codespec.backends.torch.call_shape import ROWS, computed_rows

# With AMX a NaN in one row spreads to other rows unless the depth is a multiple of this (oneDNN issue 5717).
DEPTH_UNIT = 32


class TiledLinear(nn.Module):
    """`nn.Linear`, in calls of ROWS rows if `exact`; [*, in] -> [*, out]. `packed` is the weight in the kernel's own
    layout.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, exact: bool, packed: bool = True) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.exact = exact
        self.bias = bias
        self.missing = -self.in_features % DEPTH_UNIT if weight.element_size() < torch.float32.itemsize else 0
        self.dtype = weight.dtype
        self.weight = weight.new_empty(0)  # some layers read its dtype
        self.packed = None
        if packed:
            padded = pad(weight.detach(), (0, self.missing)) if self.missing else weight.detach()
            self.packed = torch.ops.mkldnn._reorder_linear_weight(padded.contiguous(), None)
        else:
            self.weight, self.missing = nn.Parameter(weight.detach(), requires_grad=False), 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the product of every row with the weight."""
        flat = inputs.dim() == 2  # a needless view costs a tenth of a small product's time
        rows = inputs if flat else inputs.reshape(-1, self.in_features)
        count = rows.shape[0]
        tiled = self.exact and count > ROWS
        out = torch.cat([self._call(part) for part in rows.split(ROWS)]) if tiled else self._call(rows)
        return out if flat else out.reshape(*inputs.shape[:-1], self.out_features)

    def _call(self, rows: Tensor) -> Tensor:
        """Return the product of rows that fit into one call, padded to its shape."""
        count = rows.shape[0]
        computed = computed_rows(count, self.exact)
        if computed == count and not self.missing:
            return self.multiply(rows)
        one = count == 1 and not self.missing
        padded = rows.expand(computed, -1) if one else pad(rows, (0, self.missing, 0, computed - count))
        return self.multiply(padded)[:count]

    def multiply(self, rows: Tensor) -> Tensor:
        """Return the product of exactly these rows [rows, in + missing] in one call."""
        if self.packed is None:
            return linear(rows, self.weight, self.bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return out

    @property
    def kind(self) -> tuple[int, int, bool, torch.dtype]:
        """The properties that select its kernels, apart from rows."""
        return self.out_features, self.in_features, self.bias is not None, self.dtype


def can_pack(dtype: torch.dtype) -> str:
    """Check on a small product that the packed op exists and is correct; return "" or the problem.

    Batch invariance is tested on the model itself (`startup.batch_invariance`).
    """
    if not torch.backends.mkldnn.is_available():
        return "this torch build has no oneDNN"
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).to(dtype)
    rows = torch.randn(24, 64, generator=generator).to(dtype)
    try:
        out = TiledLinear(weight, None, exact=True)(rows)
    except (RuntimeError, AttributeError) as error:
        return f"torch's packed product is not usable ({str(error).splitlines()[0]})"
    near = 1e-3 if dtype == torch.float32 else 0.1
    if not torch.allclose(out.float(), rows.float() @ weight.float().T, atol=near, rtol=near / 2):
        return "torch's packed product is wrong on this processor"
    return ""


def tile_linears(model: nn.Module, exact: bool, packed: bool) -> int:
    """Replace the model's linear layers in place and return their number. Plain weights are freed unless tied."""

    def make(layer: nn.Module) -> nn.Module:
        weight, bias = weight_and_bias(layer)
        return TiledLinear(weight, None if bias is None else bias.detach(), exact, packed)

    return len(replace_linears(model, make))


def tiled_linears(model: nn.Module) -> list[TiledLinear]:
    """Return the model's tiled layers, each once."""
    return [module for module in model.modules() if isinstance(module, TiledLinear)]


def replace_linears(model: nn.Module, make: Callable[[nn.Module], nn.Module]) -> list[nn.Module]:
    """Replace every linear layer with the result of `make`, keeping tied layers tied. Return the new layers."""
    return replace_modules(model, lambda layer: make(layer) if _is_linear(layer) else None)


def replace_modules(model: nn.Module, make: Callable[[nn.Module], nn.Module | None]) -> list[nn.Module]:
    """Replace every module for which `make` returns another, a shared one once. Return the new modules."""
    made: dict[int, nn.Module | None] = {}
    for parent in [m for m in model.modules() if m._modules]:  # listing leaves would keep all plain weights alive
        for name in list(parent._modules):  # named_children omits a layer's second name
            if (child := parent._modules[name]) is None:
                continue
            if id(child) not in made:
                made[id(child)] = make(child)
            if (new := made[id(child)]) is not None:
                setattr(parent, name, new)
    return [new for new in made.values() if new is not None]


def weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return a linear layer's weight [out, in] and bias [out]."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor) and (bias is None or isinstance(bias, Tensor))
    return weight.t() if _is_transposed(layer) else weight, bias


def _is_linear(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear or _is_transposed(layer)


def _is_transposed(layer: nn.Module) -> bool:
    """Return whether this is GPT-2's Conv1D, which stores [in, out]. Compares names: importing it takes seconds."""
    kind = type(layer)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
