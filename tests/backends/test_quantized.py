"""Folders of quantized weights: transformers dequantizes fp8 and mxfp4; other forms are refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from codespec.backends.language_model import Rows
from codespec.backends.loader import load_model
from codespec.backends.torch.model_check import TOLERANCE, gap
from codespec.errors import ModelError
from codespec.pair import read_facts
from codespec.store.model_folder import read_weights
from codespec.store.resolve import resolve
from tests.tiny_models import sample_ids, tiny_network
from tests.toy_tokenizers import toy_backend, toy_tokenizer

Stored = dict[str, Tensor]
BLOCK = 64
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
IDS = sample_ids(40)
SCALE = "model.layers.1.mlp.down_proj.weight_scale_inv"


def fp8(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
    """DeepSeek's and Qwen's blocks."""
    rows, columns = (size // BLOCK for size in weight.shape)
    blocks = weight.view(rows, BLOCK, columns, BLOCK)
    scales = blocks.abs().amax((1, 3), keepdim=True) / 448
    codes = (blocks / scales).to(torch.float8_e4m3fn)
    stored = {f"{name}.weight": codes.view(weight.shape), f"{name}.weight_scale_inv": scales.view(rows, columns)}
    return stored, (codes.float() * scales).view(weight.shape)


def mxfp4(name: str, experts: Tensor) -> tuple[Stored, Tensor]:
    """gpt-oss's experts [experts, in, out]: blocks of 32 inputs with an exponent."""
    generator = torch.Generator().manual_seed(5)
    count, inputs, outputs = experts.shape
    codes = torch.randint(16, (count, outputs, inputs // 32, 32), generator=generator)
    exponents = torch.randint(120, 126, (count, outputs, inputs // 32), generator=generator)
    blocks = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
    values = torch.tensor(FP4)[codes] * 2.0 ** (exponents[..., None] - 127)
    stored = {f"{name}_blocks": blocks, f"{name}_scales": exponents.to(torch.uint8)}
    return stored, values.flatten(2).transpose(1, 2)


FORMS: dict[str, tuple[Callable[[str, Tensor], tuple[Stored, Tensor]], str, tuple[str, ...], dict[str, Any]]] = {
    "fp8": (fp8, "llama", ("proj.weight",), {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}),
    "mxfp4": (mxfp4, "gpt_oss", ("gate_up_proj", "down_proj"), {"quant_method": "mxfp4"}),
}


def write_folder(folder: Path, form: str, change: Callable[[Stored], None] = lambda held: None, **settings: Any) -> Any:
    """Write a tiny model's folder, its plain weights as bfloat16; return the network that the weights stand for."""
    quantize, architecture, quantized, known = FORMS[form]
    network = tiny_network(architecture, vocab_size=toy_tokenizer("gpt2").vocab_size, attention="eager")
    held: Stored = {}
    with torch.no_grad():
        for name, weight in network.named_parameters():
            stored, value = {name: weight.bfloat16()}, weight.bfloat16().float()
            if name.endswith(quantized) and "layers" in name:
                stored, value = quantize(name.removesuffix(".weight"), weight.detach())
            held |= stored
            weight.copy_(value)
    change(held)
    save_file({name: tensor.contiguous() for name, tensor in held.items()}, folder / "model.safetensors")
    config = network.config.to_dict() | {"dtype": "bfloat16", "quantization_config": known | settings}
    (folder / "config.json").write_text(json.dumps(config))
    toy_backend("gpt2").save(str(folder / "tokenizer.json"))
    return network


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "native"])
@pytest.mark.parametrize("form", FORMS)
def test_the_model_is_the_one_that_the_weights_stand_for(form: str, dtype: str, tmp_path: Path) -> None:
    network = write_folder(tmp_path, form)
    model = load_model(str(tmp_path), dtype=dtype)
    assert model.spec.dtype == dtype and model.spec.parameters == sum(part.numel() for part in network.parameters())
    model.allocate(1, 64)
    got = model.forward([Rows(0, 0, IDS, keep=len(IDS))])[:, : model.spec.vocab_size]
    with torch.inference_mode():
        wanted = network(torch.tensor([IDS])).logits[0, :, : model.spec.vocab_size]
    number = getattr(torch, dtype) if dtype != "native" else torch.bfloat16
    assert gap(got, wanted, number) < TOLERANCE[number]


@pytest.mark.parametrize("form", FORMS)
def test_its_size_is_that_of_the_plain_model(form: str, tmp_path: Path) -> None:
    network = write_folder(tmp_path, form)
    wanted = sum(part.numel() for part in network.parameters())
    assert read_weights(tmp_path, tied=False).parameters == wanted
    assert read_facts(resolve(str(tmp_path))).reasons == ()


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "bitsandbytes"])
def test_another_form_is_one_sentence(method: str, tmp_path: Path) -> None:
    write_folder(tmp_path, "fp8", quant_method=method, format="int-quantized", bits=4)
    sentence = f"has weights quantized as {method}"
    assert sentence in read_facts(resolve(str(tmp_path))).reasons[0].sentence
    for dtype in ("bfloat16", "native"):
        with pytest.raises(ModelError, match=rf"can't be used, because \w+ {sentence}: use the model's GGUF file\.$"):
            load_model(str(tmp_path), dtype=dtype)


@pytest.mark.parametrize(
    ("form", "change"),
    [
        ("fp8", lambda held: held.pop(SCALE)),
        ("fp8", lambda held: held.update({SCALE: torch.ones(3, 5)})),
        ("mxfp4", lambda held: held.pop("model.layers.1.mlp.experts.down_proj_scales")),
        ("mxfp4", lambda held: held.pop("model.layers.1.mlp.experts.down_proj_blocks")),
    ],
    ids=["no scales", "other scales", "no exponents", "no blocks"],
)
def test_damage_is_one_sentence(form: str, change: Callable[[Stored], None], tmp_path: Path) -> None:
    write_folder(tmp_path, form, change)
    with pytest.raises(ModelError, match=r"^[^\n]+\.$"):
        load_model(str(tmp_path))
