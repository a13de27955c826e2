"""In exact mode on a device, every RMS norm uses codespec's row-wise function, and the loader checks its results."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from codespec.backends.language_model import Rows
from codespec.backends.torch.loader import wrap
from codespec.backends.torch.rowwise import RowNorm, replace_norms
from tests.backends.cuda.pretended import DEVICE, pretended_device
from tests.tiny_models import sample_ids, tiny_network

NORMS = {"gemma3": 13, "phi3": 5, "gpt2": 0, "cohere": 0}
CENTERED = {"cohere": 3}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize(("architecture", "dtype"), [*zip(NORMS, DTYPES * 2, strict=True)], ids=str)
def test_every_norm_is_computed_by_rows(architecture: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec.backends.torch.linear.find_product_variance", lambda device, dtype: "")
    called: list[Tensor] = []
    plain = RowNorm.forward
    with pretended_device():
        network = tiny_network(architecture, dtype=dtype)
        theirs = {type(m) for m in network.modules() if "Norm" in type(m).__name__} - {nn.LayerNorm}
        model = wrap(network, None, architecture, device=DEVICE, dtype=dtype, exact=True)
        monkeypatch.setattr(
            RowNorm, "forward", lambda norm, rows: called.extend([rows] * (not norm.centered)) or plain(norm, rows)
        )
        for kind in theirs:
            monkeypatch.setattr(kind, "forward", None)
        model.allocate(1, 64)
        model.forward([Rows(0, 0, sample_ids(8))])
    assert len(called) == NORMS[architecture]
    centered = [m for m in model.network.modules() if isinstance(m, RowNorm) and m.centered]
    assert len(centered) == CENTERED.get(architecture, 0)
    assert not model.spec.notes


class GatedRMSNorm(nn.Module):
    """A norm that computes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, rows: Tensor, gate: Tensor | None = None) -> Tensor:
        return rows


def test_another_function_is_left_and_named() -> None:
    model = nn.Sequential(GatedRMSNorm(), nn.LayerNorm(8, bias=False), nn.RMSNorm(8, eps=1e-6), nn.Linear(8, 8))
    assert replace_norms(model) == ("GatedRMSNorm",)
    assert [type(layer) for layer in model] == [GatedRMSNorm, nn.LayerNorm, RowNorm, nn.Linear]
