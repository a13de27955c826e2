"""A folder of quantized weights is read as exactly the values that its scheme defines, or refused in one sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from codespec.errors import ModelError
from codespec.models.dequantize.convert import convert, main
from codespec.models.gguf.convert import convert as convert_file
from codespec.models.loader import load_model
from codespec.pair.facts import read_facts
from codespec.pair.rows import stored_as
from codespec.store.conversion_cache import SOURCE
from codespec.store.conversions import convert_quantized
from codespec.store.resolve import resolve
from codespec.store.weights import read_weights
from tests.models.dequantize.quantized import SCHEMES, Stored, quantize_folder, write_folder
from tests.models.gguf.files import write_model

LAYER = "model.layers.1.mlp.down_proj"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_model_is_the_one_that_the_weights_stand_for(scheme: str, tmp_path: Path, out: Path) -> None:
    network = write_folder(tmp_path / "in", scheme)
    convert(tmp_path / "in", out, "0" * 64)
    loader: Any = AutoModelForCausalLM
    made, report = loader.from_pretrained(
        out, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values())
    for (name, got), (_, wanted) in zip(made.named_parameters(), network.named_parameters(), strict=True):
        assert torch.equal(got, wanted), name
    ids = torch.arange(5, 29)[None]
    assert torch.equal(made(ids).logits, network(ids).logits)
    config = json.loads((out / "config.json").read_text())
    assert "quantization_config" not in config and config[SOURCE]["quantization"]


def test_weights_are_written_in_the_models_own_format(tmp_path: Path, out: Path) -> None:
    network = write_folder(tmp_path / "in", "mxfp4", dtype="bfloat16")
    convert(tmp_path / "in", out, "0" * 64)
    held = load_file(out / "model.safetensors")
    wanted = dict(network.named_parameters())["model.layers.0.mlp.experts.gate_up_proj"]
    got = held["model.layers.0.mlp.experts.gate_up_proj"]
    assert got.dtype == torch.bfloat16 and torch.equal(got.float(), wanted)  # mxfp4 loses nothing
    assert read_weights(out, tied=False).parameters == sum(one.numel() for one in network.parameters())


@pytest.mark.usefixtures("converters_in_this_process")
def test_it_is_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_folder(tmp_path / "in", "gptq")
    folder = convert_quantized(tmp_path / "in")
    assert folder == convert_quantized(tmp_path / "in") and convert_quantized(folder) == folder
    assert capfd.readouterr().err == "codespec: converting the quantized weights of in (once)\n"


@pytest.mark.usefixtures("converters_in_this_process")
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_quantized_folder_is_a_model_everywhere_a_name_is(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    convert_file(write_model(tmp_path / "m.gguf"), folder, "0" * 64)
    quantize_folder(folder, "gptq")
    facts = read_facts(resolve(str(folder)))
    assert facts.reasons == () and stored_as(facts) == "F32 from gptq"
    model = load_model(str(folder), dtype=dtype, exact=False)
    assert model.spec.dtype == dtype and model.spec.parameters == facts.weights.parameters


def _without(name: str) -> Callable[[Stored], None]:
    return lambda held: held.__delitem__(name)


def _with(name: str, tensor: torch.Tensor) -> Callable[[Stored], None]:
    return lambda held: held.update({name: tensor})


@pytest.mark.parametrize(
    ("scheme", "change", "settings", "sentence"),
    [
        ("fp8", _without(f"{LAYER}.weight_scale_inv"), {}, "_scale_inv is missing"),
        ("fp8", _with(f"{LAYER}.weight_scale_inv", torch.ones(3, 1)), {}, r"weight_scale_inv is \[3, 1\]"),
        ("fp8", None, {"weight_block_size": [0, 64]}, "quantized as fp8 in blocks of"),
        ("int8", _without(f"{LAYER}.weight_scale"), {}, "_scale.* is missing"),
        ("int8", None, {"format": "nvfp4-pack-quantized"}, "compressed-tensors nvfp4-pack-quantized, which can't"),
        ("int8", _with("odd.codes", torch.ones(2, dtype=torch.int32)), {}, r"quantized as I32 \(odd.codes\)"),
        ("gptq", _without(f"{LAYER}.scales"), {}, "scales is missing"),
        ("gptq", _with(f"{LAYER}.scales", torch.ones(2, 128).half()), {}, r"scales is F16 \[2, 128\]"),
        ("gptq", _with(f"{LAYER}.g_idx", torch.full((256,), 99).int()), {}, "refers to groups that do not exist"),
        ("gptq", None, {"bits": 3}, "numbers of 3 bits"),
        ("gptq", None, {"group_size": "many"}, "groups of many"),
        ("gptq", None, {"bits": [4]}, r"numbers of \[4\] bits"),
        ("fp8", None, {"weight_block_size": 64}, "fp8 in blocks of 64"),
        ("fp8", None, {"weight_block_size": [1 << 40, 1 << 40]}, "weight_scale_inv is"),
        ("gptq", _with(f"{LAYER}.qweight", torch.ones(0, 128).int()), {}, r"qweight is I32 \[0, 128\]"),
        ("packed", _with(f"{LAYER}.weight_shape", torch.tensor([-1, 256])), {}, r"weight_shape is \[-1, 256\]"),
        ("packed", None, {"config_groups": {"a": 1}}, "in several groups"),
        ("awq", _without(f"{LAYER}.qzeros"), {}, "qzeros is missing"),
        ("awq", None, {"version": "gemv"}, "awq gemv of 4 bits"),
        ("packed", _with(f"{LAYER}.weight_shape", torch.tensor([9, 9])), {}, "weight_packed is I32"),
        ("mxfp4", _without("model.layers.1.mlp.experts.down_proj_scales"), {}, "_scales is missing"),
        ("awq", None, {"quant_method": "bitsandbytes"}, "as bitsandbytes, which can't be read: use the original"),
    ],
)
def test_damage_is_one_sentence(
    scheme: str,
    change: Callable[[Stored], None] | None,
    settings: dict[str, Any],
    sentence: str,
    tmp_path: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_folder(tmp_path / "in", scheme, change, quantization_config={**SCHEMES[scheme][1], **settings})
    assert main([str(tmp_path / "in"), str(out), "0" * 64]) == 2
    said = capsys.readouterr().err.strip()
    assert re.search(sentence, said) and said.endswith(".") and "\n" not in said


def test_a_value_that_is_not_a_number_is_one_sentence(tmp_path: Path, out: Path) -> None:
    bad = torch.full((128, 1), float("nan"))
    write_folder(tmp_path / "in", "int8", _with(f"{LAYER}.weight_scale", bad))
    with pytest.raises(ModelError, match="beyond the range of its format"):
        convert(tmp_path / "in", out, "0" * 64)
