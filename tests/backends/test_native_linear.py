"""Native products in a network that torch computes: near the float model, and the same bits in any batch."""

from __future__ import annotations

import json
import weakref
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
import torch
from codespec_native.library import paths
from torch import Tensor, nn

from codespec.backends.language_model import Rows
from codespec.backends.loader import load_model
from codespec.backends.native.model import NativeModel
from codespec.backends.native.weights import PATH
from codespec.backends.torch.linear import Kernels, NativeLinear, TiledLinear, pack_linears
from codespec.backends.torch.model import TorchModel
from codespec.startup.batch_invariance import find_variance
from tests.backends.gguf.files import write_model
from tests.pairs import Garbage, Mixed, Oracle, Troupe, build, network_for, prompts, run, texts, total, varied_requests
from tests.toy_tokenizers import toy_backend, toy_tokenizer

FOLDERS = TemporaryDirectory(prefix="codespec-native-linear-")  # for the whole test run
FAMILIES = ["gemma2", "gemma3", "gpt2", "starcoder2", "mixtral", "gpt_oss", "qwen3_5", "lfm2"]
LLAMAS = ["llama", "qwen3"]
SIZES = [(64, 48, True), (896, 37, False), (70, 33, True), (31, 5, False), (2503, 16, True)]  # inputs, outputs, bias


@cache
def folder(architecture: str, **change: Any) -> Path:
    place = Path(mkdtemp(dir=FOLDERS.name))
    network_for(architecture, toy_tokenizer("gpt2"), **change).save_pretrained(place)
    toy_backend("gpt2").save(str(place / "tokenizer.json"))
    return place


@cache
def native(architecture: str) -> TorchModel:
    model = load_model(str(folder(architecture)), dtype="native")
    assert isinstance(model, TorchModel)
    return model


def layer_of(inputs: int, outputs: int, biased: bool) -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(inputs)
    layer = nn.Linear(inputs, outputs, bias=biased).requires_grad_(False)
    return layer, torch.randn(40, inputs)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_row_has_the_same_bits_with_any_rows_threads_and_instructions(
    size: tuple[int, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, rows = layer_of(*size)
    found = []
    for path in paths():
        monkeypatch.setenv(PATH, path)
        kernels = Kernels()
        product = NativeLinear(layer.weight, layer.bias, kernels)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(product(rows))
        torch.set_num_threads(1)
    whole, *others = found
    assert all(torch.equal(whole, other) for other in others)
    for count in range(1, 41):
        assert torch.equal(product(rows[:count]), whole[:count])
    for bad in (float("nan"), float("inf"), 1e30):
        beside = torch.full_like(rows, bad)
        beside[7] = rows[7]
        assert torch.equal(product(beside)[7], whole[7])
    assert torch.equal(product(rows.view(2, 20, -1)), whole.view(2, 20, -1))
    true = layer(rows)
    assert (whole - true).abs().mean() < 0.01 * true.std()


def test_float_weights_are_freed_one_by_one() -> None:
    """Peak memory is the float network and one matrix."""
    network = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).requires_grad_(False)
    left = [weakref.ref(layer.weight) for layer in network]
    alive: list[int] = []

    class Counting(NativeLinear):
        def __init__(self, *given: Any) -> None:
            alive.append(sum(ref() is not None for ref in left))
            super().__init__(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codespec.backends.torch.linear.NativeLinear", Counting)
        pack_linears(network)
    assert alive == [4, 3, 2, 1] and all(ref() is None for ref in left)


def log_odds(model: TorchModel, ids: list[int]) -> Tensor:
    model.allocate(1, 512)
    model.admit(0, len(ids))
    return torch.log_softmax(model.forward([Rows(0, 0, ids, keep=len(ids))]), -1)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_near_the_float_model(architecture: str) -> None:
    rounded, plain = native(architecture), load_model(str(folder(architecture)), dtype="float32")
    assert isinstance(plain, TorchModel) and rounded.spec.dtype == "native" and "products alone" in rounded.kernel
    assert rounded.spec.parameters == plain.spec.parameters
    kinds = [type(part) for part in rounded.network.modules()]
    assert NativeLinear in kinds and nn.Linear not in kinds
    routers = [name for name, part in rounded.network.named_modules() if isinstance(part, TiledLinear)]
    assert all("products.of" in name for name in routers), "only routers are left in float"
    ids = plain.tokenizer.encode(prompts(8)[7])[:200]
    got, wanted = (log_odds(model, ids) for model in (rounded, plain))
    divergence = (wanted.exp() * (wanted - got)).sum(-1)
    assert divergence.median() < 0.01  # a row whose router chooses another expert is further away
    assert (got.argmax(-1) == wanted.argmax(-1)).float().mean() > 0.85


@pytest.mark.parametrize("architecture", ["gemma2", "mixtral", "qwen3_5"])
def test_on_equals_off(architecture: str) -> None:
    """Ragged batches, prompts that share a beginning, and drafts of which some are rejected."""
    target, requests = native(architecture), varied_requests()
    requests += [requests[0], requests[3]]  # the prompts are in the cache
    plain = run(build(target), requests, speculate=False)
    assert target.exact and not find_variance_of(target)
    script = target, requests, plain
    for together in (True, False):
        troupe = Troupe(Oracle(*script), Mixed(*script), Mixed(*script, as_ids=True, seed=1), Garbage())
        done = run(build(target, troupe), requests, together=together)
        assert texts(done) == texts(plain)
        assert total(done).accepted > 20 and total(done).rounds_none > 5


def find_variance_of(model: TorchModel) -> str:
    model.allocate(3, 640)
    return find_variance(model, 64)


@pytest.mark.parametrize("architecture", LLAMAS)
def test_the_whole_step_where_the_kernels_compute_it(architecture: str) -> None:
    assert isinstance(load_model(str(folder(architecture)), dtype="native"), NativeModel)


def test_products_alone_where_they_do_not(tmp_path: Path) -> None:
    """A Llama whose width is no multiple of 32, one with an unknown rotation, and a GGUF file of another family."""
    odd = folder("llama", hidden_size=72, num_attention_heads=2, num_key_value_heads=2, head_dim=36)
    scaled = Path(mkdtemp(dir=FOLDERS.name))
    for file in folder("llama").iterdir():
        (scaled / file.name).write_bytes(file.read_bytes())
    config = json.loads((scaled / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    (scaled / "config.json").write_text(json.dumps(config))
    for place in (odd, scaled, write_model(tmp_path / "m.gguf", "gemma", "Q8_0")):
        model = load_model(str(place), dtype="native")
        assert isinstance(model, TorchModel) and model.spec.dtype == "native"
