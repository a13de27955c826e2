"""Linear layers with weights packed once for the CPU's matrix kernels. Knows shapes and dtypes, nothing of models.

torch's plain bfloat16 product repacks the weight at every call, and its float32 product changes kernels with the number
of rows. The packed product (the op that Inductor's freezing emits) does neither: measured 1.5-1.8 x faster in bfloat16,
and a row's bits do not depend on how many rows it is computed with (MODELS.md, last section). One row alone may take
another kernel, so it is padded to two.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

PROBE_ROWS = (1, 2, 3, 5, 8, 17, 64)


class PackedLinear(nn.Module):
    """`nn.Linear` over a packed weight; [*, in] -> [*, out]. `exact` pads one row to two."""

    def __init__(self, weight: Tensor, bias: Tensor | None, exact: bool) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.exact = exact
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self.bias = bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Products of every row with the packed weight."""
        rows = inputs.reshape(-1, self.in_features)
        alone = self.exact and rows.shape[0] == 1
        if alone:
            rows = rows.expand(2, -1).contiguous()
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return (out[:1] if alone else out).reshape(*inputs.shape[:-1], self.out_features)


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
    """Replaces every linear layer of the model in place; returns how many. The plain weights are freed unless tied."""
    packed: dict[int, PackedLinear] = {}
    for parent in [m for m in model.modules() if m._modules]:  # a list of the layers too would hold all plain weights
        for name, child in list(parent._modules.items()):  # named_children leaves out a second name of a layer
            if type(child) is nn.Linear or type(child) is Conv1D:
                if id(child) not in packed:
                    packed[id(child)] = _pack(child, exact)
                setattr(parent, name, packed[id(child)])
    return len(packed)


def _pack(layer: nn.Module, exact: bool) -> PackedLinear:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    bias = layer.bias if isinstance(layer.bias, Tensor) else None
    if isinstance(layer, Conv1D):  # GPT-2 keeps its weights the other way round
        weight = weight.t()
    return PackedLinear(weight, None if bias is None else bias.detach(), exact)
