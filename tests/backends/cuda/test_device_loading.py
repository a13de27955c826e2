"""Loading for a device: products with a fixed order of summation, and a drafter on its own device."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest
import torch

from codespec.api.config import EngineConfig
from codespec.backends.language_model import Rows
from codespec.backends.torch import linear, loader
from codespec.backends.torch import loader as torch_loader
from codespec.backends.torch.attention import register
from codespec.backends.torch.linear import InvariantLinear
from codespec.backends.torch.model import TorchModel
from codespec.backends.torch.model_check import read_config
from codespec.errors import ModelError
from codespec.startup import parts
from tests.tiny_models import sample_ids, tiny_model

CUDA = torch.device("cuda")  # only named, not used
PACK = loader._pack


def logits(model: TorchModel) -> torch.Tensor:
    model.allocate(1, 64)
    return model.forward([Rows(0, 0, sample_ids(40), keep=40)])


def as_on_cuda(monkeypatch: pytest.MonkeyPatch, exact: bool, problem: str = "") -> TorchModel:
    """Return a model whose products are built as for a GPU, although they run here."""
    monkeypatch.setattr(linear, "find_product_variance", lambda device, dtype: problem)
    monkeypatch.setattr(loader, "_pack", lambda network, device, dtype, exact: PACK(network, CUDA, dtype, exact))
    return tiny_model("llama", exact=exact, steps="device")


def test_exact_products_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = logits(tiny_model("llama"))
    model = as_on_cuda(monkeypatch, exact=True)
    kinds = {type(m) for m in model.network.modules() if hasattr(m, "in_features")}
    assert kinds == {InvariantLinear} and not model.spec.notes and not model.spec.packed
    assert torch.allclose(logits(model), wanted, atol=1e-4)


def test_fast_products_are_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    model = as_on_cuda(monkeypatch, exact=False)
    assert not [m for m in model.network.modules() if isinstance(m, InvariantLinear)]


def test_products_that_do_not_keep_their_order_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = as_on_cuda(monkeypatch, exact=True, problem="the product is wrong here")
    assert not [m for m in model.network.modules() if isinstance(m, InvariantLinear)]
    assert model.spec.notes == ("the product is wrong here: plain products are used, which are not row-invariant",)


def test_a_gpu_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(loader, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"^A GPU needs Triton.*`pip install triton`.*set device to cpu\.$"):
        torch_loader.find_device("cuda:1")
    assert torch_loader.find_device("cpu").type == "cpu"


@pytest.mark.parametrize(
    "device,asked,wanted", [("cuda", "same", "cuda"), ("cuda", "cpu", "cpu"), ("cuda", "cuda:1", "cuda:1")]
)
def test_the_drafter_goes_where_it_is_told(
    device: str, asked: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def loaded(files: object, *, device: str, exact: bool, **_: object) -> mock.Mock:
        seen.append((device, exact))
        return mock.Mock()

    monkeypatch.setattr(parts, "load_files", loaded)
    monkeypatch.setattr(parts, "prepare", lambda *_: {"notes": []})
    parts.load_parts(EngineConfig(device=device, drafter_device=asked), print)
    assert seen == [(device, True), (wanted, False)], "nobody needs a drafter's rows bit for bit"


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
def test_weights_go_straight_to_their_device() -> None:
    """The network is not wrapped, and equals the one loaded to host memory."""
    folder = Path(EngineConfig().target)
    config = read_config(folder)
    register()
    straight, usual = (loader._network(folder, config, torch.float32, device) for device in (torch.device("cpu"), None))
    assert not any(hasattr(module, "_hf_hook") for module in straight.modules())
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), usual.parameters(), strict=True))


@pytest.mark.parametrize("installed", [True, False])
def test_a_gpus_weights_take_no_host_memory(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def load(*_: object, **given: object) -> None:
        seen.append(given.get("device_map"))
        raise RuntimeError("enough")

    monkeypatch.setattr(loader.AutoModelForCausalLM, "from_pretrained", load)
    monkeypatch.setattr(loader, "find_spec", lambda name: installed or None)
    monkeypatch.setattr(loader, "find_device", torch.device)
    monkeypatch.setattr(loader, "free_memory", lambda device: None)
    with pytest.raises(ModelError, match="enough"):
        loader.load_torch_model(EngineConfig().target, device="cuda", dtype="bfloat16")
    assert seen == [{"": CUDA} if installed else None]
