"""Int8 weights that a quantizer rounded with one scale per output are used unchanged; other forms are not."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from codespec.errors import ModelError
from codespec.models.int8.convert import convert
from codespec.models.int8.kernels import FULL, HALF, KERNELS, Choice, choose_kernel
from codespec.models.int8.linear import Int8Linear, quantize
from codespec.models.int8.network import Int8Network
from codespec.models.language_model import LanguageModel
from codespec.models.loader import load_model
from codespec.models.rows import Rows
from codespec.store.conversions import int8_recipe, source_quantization
from codespec.store.resolve import resolve
from codespec.store.row_scaled import is_row_scaled
from codespec.text.control_tokens import read_json
from tests.models.dequantize.quantized import SCHEMES, quantize_folder
from tests.models.gguf.files import write_model
from tests.pairs import Garbage, Mixed, Oracle, Troupe, build, network_for, prompts, run, texts, total, varied_requests
from tests.toy_tokenizers import toy_backend, toy_tokenizer

FOLDERS = TemporaryDirectory(prefix="codespec-rows-")  # for the whole test run
FUSED = {
    "self_attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out": ("self_attn.o_proj",),
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
}


def write(architecture: str, scheme: str) -> Path:
    folder = Path(mkdtemp(dir=FOLDERS.name))
    network_for(architecture, toy_tokenizer("gpt2")).save_pretrained(folder)
    toy_backend("gpt2").save(str(folder / "tokenizer.json"))
    quantize_folder(folder, scheme)
    return folder


row_scaled = cache(write)


def copied(architecture: str = "llama") -> Path:
    """Return a folder to change."""
    return Path(copytree(row_scaled(architecture, "int8 by row"), mkdtemp(dir=FOLDERS.name), dirs_exist_ok=True))


@cache
def loaded(architecture: str) -> LanguageModel:
    torch.set_num_threads(1)
    folder = Path(mkdtemp(dir=FOLDERS.name))
    convert(row_scaled(architecture, "int8 by row"), folder, "0" * 64)
    return load_model(str(folder), dtype="int8")


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_weights_and_scales_are_the_files_own(architecture: str) -> None:
    model = loaded(architecture)
    assert isinstance(model.network, Int8Network) and model.folder is not None
    theirs = load_file(row_scaled(architecture, "int8 by row") / "model.safetensors")
    ours = load_file(model.folder / "model.safetensors")
    for number in range(2):
        layer = f"model.layers.{number}"
        for name, sources in FUSED.items():
            weight = torch.cat([theirs[f"{layer}.{source}.weight"] for source in sources])
            scale = torch.cat([theirs[f"{layer}.{source}.weight_scale"].flatten() for source in sources])
            assert weight.dtype == torch.int8 and torch.equal(ours[f"{layer}.{name}.weight"], weight)
            assert torch.equal(ours[f"{layer}.{name}.scale"], scale.float())
    assert min(int(part.min()) for part in ours.values() if part.dtype == torch.int8) == -128


def values(model: LanguageModel, ids: list[int]) -> Tensor:
    model.allocate(1, 512)
    model.admit(0, 500)
    return torch.log_softmax(model.forward([Rows(0, 0, ids, keep=len(ids))]), -1)


@pytest.mark.usefixtures("converters_in_this_process")
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_near_the_dequantized_model(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the activations are rounded more."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain = load_model(str(row_scaled(architecture, "int8 by row")), dtype="float32")
    ids = plain.tokenizer.encode(prompts(8)[7])[:200]
    got, wanted = values(loaded(architecture), ids), values(plain, ids)
    assert (wanted.exp() * (wanted - got)).sum(-1).mean() < 0.05
    assert (got.argmax(-1) == wanted.argmax(-1)).float().mean() > 0.8


def test_on_equals_off() -> None:
    target, requests = loaded("qwen2"), varied_requests()
    plain = run(build(target), requests, speculate=False)
    script = target, requests, plain
    for together in (True, False):
        troupe = Troupe(Oracle(*script), Mixed(*script), Garbage())
        done = run(build(target, troupe), requests, together=together)
        assert texts(done) == texts(plain) and total(done).accepted > 20


@pytest.mark.usefixtures("converters_in_this_process")
def test_a_features_basis_is_the_models_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain, kept = load_model(str(row_scaled("llama", "int8 by row")), dtype="float32"), []
    for model in (loaded("llama"), plain):
        model.tap([0, 1])
        values(model, list(range(5, 45)))
        kept.append(model.features)
    assert ((kept[0] - kept[1]).norm(dim=-1) / kept[1].norm(dim=-1)).max() < 0.1


@pytest.mark.usefixtures("converters_in_this_process")
def test_a_folder_is_taken_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = resolve(str(row_scaled("llama", "int8 by row")))
    config = read_json(model.folder("int8") / "config.json")
    assert int8_recipe(config) and source_quantization(config) == "int-quantized"
    assert "quantization_config" not in config
    assert "model.norm.weight" in load_file(model.folder("int8") / "model.safetensors")


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name not in ("int8 by row", "mxfp4")])
def test_other_schemes_are_dequantized_first(scheme: str) -> None:
    assert not is_row_scaled(row_scaled("llama", scheme))


@pytest.mark.parametrize(
    ("architecture", "change"),
    [
        ("gemma2", {}),
        ("llama", {"transform_config": {"config_groups": {"a": {}}}}),
        ("llama", {"format": "pack-quantized"}),
        ("llama", {"config_groups": {"a": {}, "b": {}}}),
        ("llama", {"config_groups": "all"}),
    ],
)
def test_other_settings_are_not_taken(architecture: str, change: dict[str, Any]) -> None:
    folder = copied(architecture)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    assert not is_row_scaled(folder)


@pytest.mark.parametrize("asymmetric", ["weights", "input_activations"])
def test_zero_points_are_not_taken(asymmetric: str) -> None:
    folder = copied()
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"][asymmetric]["symmetric"] = False
    (folder / "config.json").write_text(json.dumps(config))
    assert not is_row_scaled(folder)


@pytest.mark.parametrize("scale", [torch.ones(128, 2), torch.ones(1), torch.ones(128, 1, dtype=torch.int32)])
def test_other_scales_are_not_taken(scale: Tensor) -> None:
    folder = copied()
    held = load_file(folder / "model.safetensors")
    save_file({**held, "model.layers.0.mlp.down_proj.weight_scale": scale}, folder / "model.safetensors")
    assert not is_row_scaled(folder)


def test_a_scale_of_zero_is_one_sentence(tmp_path: Path) -> None:
    folder, name = copied(), "model.layers.0.mlp.down_proj.weight_scale"
    held = load_file(folder / "model.safetensors")
    held[name][3] = 0
    save_file(held, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"down_proj.weight_scale of .* has a scale of 0 or less: fetch"):
        convert(folder, tmp_path, "0" * 64)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_least_weight_does_not_saturate(kernel: Any) -> None:
    """Ours are within ±127; a quantizer's may be -128."""
    if choose_kernel().most == HALF:
        pytest.skip("this processor multiplies weights within ±63, to which they are rescaled")
    weight, rows = torch.full((40, 2500), -128, dtype=torch.int8), torch.full((3, 2500), 127.0)
    layer = Int8Linear(weight, torch.ones(40), None, Choice(kernel, FULL))
    found = layer.multiply(quantize(rows, kernel)) / (-128.0 * 127 * 2500)
    assert (found - 1).abs().max() < 1e-6


def test_a_plain_folder_is_none_of_these(tmp_path: Path) -> None:
    assert not is_row_scaled(tmp_path)
    assert resolve(str(write_model(tmp_path / "m.gguf")))._int8_folder() is None
