"""Three replacements of linear layers: for torch on a CPU, for the native kernels, and for a GPU in exact mode.

Kernels choose their tiles and summation order by the number of rows, so a row's bits may depend on how many rows are
computed together. In exact mode, `TiledLinear` therefore calls kernels with a fixed number of rows, and
`InvariantLinear` fixes the summation order (`ProductPlan`). The native kernels are always batch-invariant
(native/README.md).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from codespec_native.library import GROUP, Floats, Matrix, NativeError, Pool, path_name
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from codespec.backends.native.weights import F32, forced_path
from codespec.backends.torch.cuda.launch import ProductPlan, plan_of
from codespec.errors import ModelError

ROWS = 16  # rows per call of a product, and query rows per call of attention, in exact mode
FEW_ROWS = 16  # up to this number of rows, every number has its own kernel in fast mode
# With AMX a NaN in one row spreads to other rows unless the depth is a multiple of this (oneDNN issue 5717).
DEPTH_UNIT = 32


def computed_rows(count: int, exact: bool) -> int:
    """Return the number of rows, including padding, that are computed for `count` rows.

    In fast mode, counts above FEW_ROWS are rounded up to one of eight values between consecutive powers of two, because
    oneDNN compiles and caches a kernel for each matrix and number of rows (0.2-0.6 MB, half a millisecond).
    """
    if exact:
        return count + -count % ROWS
    if count <= FEW_ROWS:
        return count
    step = 1 << (count - 1).bit_length() - 4
    return -(-count // step) * step


class TiledLinear(nn.Module):
    """A linear layer [*, in] -> [*, out] that computes products in calls of ROWS rows if `exact`.

    `packed` is the weight in the kernel's own layout. The op that reads this layout is 1.5-1.8 x as
    fast as torch's plain bfloat16 product, which repacks the weight at every call.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, exact: bool, packed: bool = True) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.exact = exact
        self.bias = None if bias is None else bias.detach()
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
        """Apply the layer to inputs [*, in] -> [*, out]."""
        flat = inputs.dim() == 2  # a needless view costs a tenth of a small product's time
        rows = inputs if flat else inputs.reshape(-1, self.in_features)
        tiled = self.exact and rows.shape[0] > ROWS
        out = torch.cat([self._call(part) for part in rows.split(ROWS)]) if tiled else self._call(rows)
        return out if flat else out.reshape(*inputs.shape[:-1], self.out_features)

    def _call(self, rows: Tensor) -> Tensor:
        """Pad rows to the size of one call, and return their product with the weight."""
        count = rows.shape[0]
        computed = computed_rows(count, self.exact)
        if computed == count and not self.missing:
            return self.multiply(rows)
        one = count == 1 and not self.missing
        padded = rows.expand(computed, -1) if one else pad(rows, (0, self.missing, 0, computed - count))
        return self.multiply(padded)[:count]

    def multiply(self, rows: Tensor) -> Tensor:
        """Return the product of rows [rows, in + missing] with the weight, in one call without padding."""
        if self.packed is None:
            return linear(rows, self.weight, self.bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return out

    @property
    def kind(self) -> tuple[int, int, bool, torch.dtype]:
        """The properties of the layer, apart from the number of rows, by which torch selects a kernel."""
        return self.out_features, self.in_features, self.bias is not None, self.dtype


def can_pack(dtype: torch.dtype) -> str:
    """Check on a small product that the packed op exists and is correct. Return "" or the problem."""
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
    """Replace all linear layers in place with `TiledLinear`; return their number. Weights are freed unless tied."""
    return len(replace_linears(model, lambda layer: TiledLinear(*weight_and_bias(layer), exact, packed)))


def tiled_linears(model: nn.Module) -> list[TiledLinear]:
    """Return the model's tiled layers, each once."""
    return [module for module in model.modules() if isinstance(module, TiledLinear)]


SMALL = 1 << 18  # up to this number of weights, one thread computes a product faster than several


class Kernels:
    """The instruction set and the threads that the native layers of one network share."""

    def __init__(self) -> None:
        self.path = forced_path()
        self._single = self._pool = Pool(1)
        self._count = 1

    @property
    def pool(self) -> Pool:
        """A pool of as many threads as torch currently uses."""
        if (count := torch.get_num_threads()) != self._count:
            self._pool, self._count = Pool(count), count
        return self._pool

    def multiply(self, matrix: Matrix, rows: Floats) -> Floats:
        """Return the product [rows, outputs] of rows [rows, inputs] with a matrix."""
        small = matrix.outputs * matrix.inputs <= SMALL
        return matrix.multiply(rows, self._single if small else self.pool, self.path)


class NativeLinear(nn.Module):
    """A linear layer [*, in] -> [*, out] with 8-bit weights in blocks of 32, which are rounded while loading.

    `NativeLinear` is for models with parts that the native kernels can't compute: mixtures of experts, recurrent
    layers, unsupported norms and gates.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: Kernels) -> None:
        """Round a weight [out, in] and store a packed copy. Raise NativeError if there is not enough memory."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else bias.detach().float()
        self.weight = torch.empty(0)  # some layers read its dtype
        self.missing = -self.in_features % GROUP
        rows = pad(weight.detach().float(), (0, self.missing)).contiguous().numpy()
        self._matrix = Matrix(kernels.pool, F32, len(rows), rows.shape[1], rows.view(np.uint8))
        self._kernels = kernels

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer to inputs [*, in] -> [*, out]."""
        rows = inputs.reshape(-1, self.in_features).float()
        if self.missing:
            rows = pad(rows, (0, self.missing))
        out = torch.from_numpy(self._kernels.multiply(self._matrix, rows.numpy()))
        if self.bias is not None:
            out += self.bias
        return out.to(inputs.dtype).reshape(*inputs.shape[:-1], self.out_features)


def pack_linears(network: nn.Module) -> str:
    """Replace every linear layer of a float network with a `NativeLinear` in place, and return the name of the kernels.

    Raise ModelError if the compiled library is missing or there is not enough memory.
    """
    try:
        kernels = Kernels()
        replace_linears(network, lambda layer: NativeLinear(*weight_and_bias(layer), kernels))
    except NativeError as error:
        fact = f"The native products can't be computed ({str(error).rstrip('.')})"
        raise ModelError(fact, "set dtype to bfloat16") from error
    return f"native ({path_name(kernels.path)}), products alone"


PROBE_ROWS = (1, 2, 5, 16, 17, 33, 64, 65, 130)
PROBE_COLUMNS = 12_300  # wide enough that 65 rows use the largest tile


class InvariantLinear(nn.Module):
    """A batch-invariant `nn.Linear` with the same weight; [*, in] -> [*, out]."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        self.bias = bias
        self.plan = plan_of(self.out_features, self.in_features, weight.dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer to inputs [*, in] -> [*, out]."""
        rows = inputs.reshape(-1, self.in_features)
        return multiply(rows, self.weight, self.bias, self.plan).view(*inputs.shape[:-1], self.out_features)


def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None, plan: ProductPlan) -> Tensor:
    """Compute rows [M, in] · weight [out, in]ᵀ + bias [out] -> [M, out], split by split."""
    if rows.device.type == "cuda":
        from codespec.backends.torch.cuda import product_kernels  # Triton is on GPU machines only

        return product_kernels.multiply(rows, weight, bias, plan)
    return reference_product(rows, weight, bias, plan)


def reference_product(rows: Tensor, weight: Tensor, bias: Tensor | None, plan: ProductPlan) -> Tensor:
    """Compute the result of `multiply` with torch in float32."""
    total = rows.new_zeros(rows.shape[0], weight.shape[0], dtype=torch.float32)
    span = plan.span(rows.shape[1])
    for start in range(0, rows.shape[1], span):
        part = slice(start, start + span)
        total += rows[:, part].float() @ weight[:, part].float().T
    if bias is not None:
        total += bias.float()
    return total.to(rows.dtype)


def find_product_variance(device: torch.device, dtype: torch.dtype, columns: int = PROBE_COLUMNS) -> str:
    """Test `multiply` on a device. Return "" if the products are correct and batch-invariant, otherwise the fault."""
    generator = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(n, 1000, generator=generator).to(device, dtype) for n in (columns, max(PROBE_ROWS)))
    near = 1e-5 if dtype == torch.float32 else 1e-2
    for splits in (1, 2):
        plan = ProductPlan(splits, 32)
        whole = multiply(rows, weight, None, plan)
        wanted = reference_product(rows, weight, None, plan)
        if (whole.float() - wanted.float()).abs().max() > near * wanted.float().abs().max():
            return f"the row-invariant product is wrong on {device.type} ({dtype})"
        if any(not torch.equal(multiply(rows[:count], weight, None, plan), whole[:count]) for count in PROBE_ROWS):
            return f"the row-invariant product depends on the number of rows on {device.type} ({dtype})"
    return ""


def fix_linears(model: nn.Module) -> int:
    """Make the model's linear layers batch-invariant, in place, and return their number. Tied weights remain tied."""

    def make(layer: nn.Module) -> InvariantLinear:
        weight, bias = weight_and_bias(layer)
        if not isinstance(weight, nn.Parameter):  # a transposed view of GPT-2's Conv1D weight
            weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
        assert bias is None or isinstance(bias, nn.Parameter)
        return InvariantLinear(weight, bias)

    return len(replace_linears(model, make))


def replace_linears(model: nn.Module, make: Callable[[nn.Module], nn.Module]) -> list[nn.Module]:
    """Replace every linear layer with the result of `make`, keeping tied layers tied. Return the new layers."""
    return replace_modules(
        model, lambda layer: make(layer) if type(layer) is nn.Linear or _is_transposed(layer) else None
    )


def replace_modules(model: nn.Module, make: Callable[[nn.Module], nn.Module | None]) -> list[nn.Module]:
    """Replace each module for which `make`, called once per module, returns a new one; return the new modules."""
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


def _is_transposed(layer: nn.Module) -> bool:
    """Return whether a layer is GPT-2's Conv1D, whose weight is stored as [in, out]."""
    kind = type(layer)  # compared by name, because importing Conv1D takes seconds
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
