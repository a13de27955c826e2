"""A model on a device never passes its layers a CPU tensor.

Every architecture is loaded, checked and run on a fake device that rejects CPU tensors, and must equal its results on
the CPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from codespec.backends.language_model import Rows
from codespec.backends.torch.loader import wrap
from codespec.backends.torch.model import TorchModel
from tests.backends.cuda.pretended import DEVICE, pretended_device
from tests.backends.test_rotary import CASES as ROTARIES
from tests.tiny_models import ARCHITECTURES, LONGROPE_LIMIT, MIXTURES, sample_ids, tiny_network

# Mixtures of experts count differently on a CPU; the last two are rejected on every device.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ARCHITECTURES if name not in (*MIXTURES, "gptj", "bloom")},
    **{name: case for name, case in ROTARIES.items() if case[0] not in MIXTURES},
}
KINDS = ("gemma2", "opt", "longrope")  # of layers and positions
IDS = sample_ids(40)


def on(device: torch.device, architecture: str, change: dict[str, Any]) -> TorchModel:
    network = tiny_network(architecture, **change)
    return wrap(network, None, architecture, device=device, dtype=torch.float32, exact=False, steps="device")


def play(model: TorchModel) -> Tensor:
    """Run a short request and one that may grow long, rolled back, copied and continued."""
    model.allocate(3, 128)
    model.admit(0, 40)
    model.admit(1, LONGROPE_LIMIT + 20)
    first = model.forward([Rows(0, 0, IDS[:12], keep=12), Rows(1, 0, IDS[:5], keep=5)])
    model.rollback(0, 9)
    model.fork(0, 2, 9)
    second = model.forward([Rows(slot, 9, IDS[9:20], keep=11) for slot in (0, 2)])
    return torch.cat([first, second])


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in KINDS else pytest.mark.full) for case in CASES]
)
def test_nothing_lies_on_the_cpu(case: str) -> None:
    wanted = play(on(torch.device("cpu"), *CASES[case]))
    with pretended_device():
        found = play(on(DEVICE, *CASES[case]))
    assert found.device == DEVICE
    assert torch.allclose(found.held, wanted, atol=1e-4)  # type: ignore[attr-defined]


def test_the_pretended_device_refuses_what_a_gpu_refuses() -> None:
    with pretended_device():
        here, there = torch.ones(3), torch.ones(3, device=DEVICE)
        assert (there + 1).device == (there + torch.tensor(2.0)).device == DEVICE
        assert torch.equal((there + there).cpu(), here + here)
        with pytest.raises(RuntimeError, match="on the same device"):
            there + here
