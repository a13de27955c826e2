"""Tiny folders with quantized weights, written by each scheme's public rule, and the values that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.tiny_models import tiny_network

Stored = dict[str, Tensor]
GROUP, BLOCK = 32, 64
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
AWQ_PACKED = [0, 2, 4, 6, 1, 3, 5, 7]  # the output that each four bits of a word hold, lowest first


def fp8(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
    """DeepSeek's and Qwen's blocks."""
    scales = torch.empty(-(-weight.shape[0] // BLOCK), -(-weight.shape[1] // BLOCK))
    codes, value = torch.empty_like(weight, dtype=torch.float8_e4m3fn), torch.empty_like(weight)
    for row in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            place = slice(row * BLOCK, (row + 1) * BLOCK), slice(column * BLOCK, (column + 1) * BLOCK)
            scales[row, column] = weight[place].abs().max() / 448
            codes[place] = (weight[place] / scales[row, column]).to(torch.float8_e4m3fn)
            value[place] = codes[place].float() * scales[row, column]
    return {f"{name}.weight": codes, f"{name}.weight_scale_inv": scales}, value


def fp8_channel(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {f"{name}.weight": codes, f"{name}.weight_scale": scale}, codes.float() * scale


def fp8_tensor(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
    scale = weight.abs().max()[None] / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    extra = {f"{name}.weight_scale": scale, f"{name}.input_scale": torch.ones(1)}
    return {f"{name}.weight": codes, **extra}, codes.float() * scale


def int8(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
    """W8A8: a scale an output."""
    scale = weight.abs().amax(1, keepdim=True) / 127.5
    codes = (weight / scale).round().clamp(-128, 127).to(torch.int8)
    return {f"{name}.weight": codes, f"{name}.weight_scale": scale}, codes.float() * scale


def _grouped(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return unsigned codes [out, in] of 4 bits, and scales and zero points [out, groups]."""
    parts = weight.unflatten(1, (-1, GROUP))
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    scales = ((high - low) / 15).half().float()
    zeros = (-low / scales).round().clamp(0, 15)
    codes = (parts / scales[..., None] + zeros[..., None]).round().clamp(0, 15)
    return codes.flatten(1).int(), scales, zeros.int()


def _values(codes: Tensor, scales: Tensor, zeros: Tensor, group: Tensor) -> Tensor:
    return (codes - zeros[:, group]).float() * scales[:, group]


def _pack(codes: Tensor, order: list[int]) -> Tensor:
    """Pack eight numbers of a row into each word."""
    words = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int64)
    for place, item in enumerate(order):
        words |= codes[:, item::8].long() << (4 * place)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def gptq(name: str, weight: Tensor, *, shuffled: bool = False) -> tuple[Stored, Tensor]:
    """Inputs are packed; zero points are stored minus one."""
    codes, scales, zeros = _grouped(weight)
    zeros = zeros.clamp(min=1)
    group = torch.arange(weight.shape[1]) // GROUP
    if shuffled:
        group = group[torch.randperm(len(group), generator=torch.Generator().manual_seed(3))]
    stored = {
        f"{name}.qweight": _pack(codes, list(range(8))).T.contiguous(),
        f"{name}.qzeros": _pack(zeros.T - 1, list(range(8))),
        f"{name}.scales": scales.T.half().contiguous(),
        f"{name}.g_idx": group.int(),
    }
    return stored, _values(codes, scales, zeros, group)


def gptq_shuffled(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
    return gptq(name, weight, shuffled=True)


def awq(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
    """Outputs are packed, in an order of their own."""
    codes, scales, zeros = _grouped(weight)
    stored = {
        f"{name}.qweight": _pack(codes.T, AWQ_PACKED),
        f"{name}.qzeros": _pack(zeros.T, AWQ_PACKED),
        f"{name}.scales": scales.T.half().contiguous(),
    }
    return stored, _values(codes, scales, zeros, torch.arange(weight.shape[1]) // GROUP)


def packed(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
    """W4A16 of compressed-tensors: symmetric, inputs packed."""
    parts = weight.unflatten(1, (-1, GROUP))
    scales = parts.abs().amax(2) / 7.5
    codes = (parts / scales[..., None]).round().clamp(-8, 7).int()
    stored = {
        f"{name}.weight_packed": _pack(codes.flatten(1) + 8, list(range(8))),
        f"{name}.weight_scale": scales,
        f"{name}.weight_shape": torch.tensor(weight.shape),
    }
    return stored, (codes.float() * scales[..., None]).flatten(1)


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


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


def _rows(**activations: Any) -> dict[str, Any]:
    """Return W8A8's settings: a scale an output, and one a row of activations."""
    settings = _compressed("int-quantized", num_bits=8, type="int", strategy="channel")
    rows = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, **activations}
    settings["config_groups"]["group_0"]["input_activations"] = rows
    return settings


FOUR = {"bits": 4, "group_size": GROUP}
Quantizer = Callable[[str, Tensor], tuple[Stored, Tensor]]
SCHEMES: dict[str, tuple[Quantizer, dict[str, Any]]] = {
    "fp8": (fp8, {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}),
    "fp8 of a tensor": (fp8_tensor, _compressed("float-quantized", num_bits=8, strategy="tensor")),
    "fp8 of a channel": (fp8_channel, _compressed("float-quantized", num_bits=8, strategy="channel")),
    "int8": (int8, _compressed("int-quantized", num_bits=8, strategy="channel")),
    "int8 by row": (int8, _rows()),
    "int8 by static scales": (int8, _rows(strategy="tensor", dynamic=False)),
    "gptq": (gptq, {"quant_method": "gptq", "desc_act": False, "sym": False, **FOUR}),
    "gptq in another order": (gptq_shuffled, {"quant_method": "gptq", "desc_act": True, "sym": False, **FOUR}),
    "awq": (awq, {"quant_method": "awq", "version": "gemm", "zero_point": True, **FOUR}),
    "packed": (packed, _compressed("pack-quantized", num_bits=4, group_size=GROUP)),
    "mxfp4": (mxfp4, {"quant_method": "mxfp4"}),
}


def write_folder(folder: Path, scheme: str, change: Callable[[Stored], None] | None = None, **config: Any) -> Any:
    """Write a tiny model's folder; return the network with the values that the weights stand for."""
    quantize, settings = SCHEMES[scheme]
    network = tiny_network("gpt_oss" if scheme == "mxfp4" else "llama", attention="eager")
    held: Stored = {}
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            is_expert = name.endswith(("gate_up_proj", "down_proj"))
            is_layer = name.endswith("proj.weight") and "layers" in name
            if is_expert if scheme == "mxfp4" else is_layer:
                stored, value = quantize(name.removesuffix(".weight"), parameter.detach())
                held |= stored
                parameter.copy_(value)
            else:
                held[name] = parameter.detach().clone()
    if change is not None:
        change(held)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in held.items()}, folder / "model.safetensors")
    values = network.config.to_dict() | {"dtype": "float32", "quantization_config": settings, **config}
    (folder / "config.json").write_text(json.dumps(values))
    return network


def quantize_folder(folder: Path, scheme: str) -> None:
    """Quantize the projections of a plain folder in place."""
    quantize, settings = SCHEMES[scheme]
    held: Stored = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        is_layer = name.endswith("proj.weight") and "layers" in name
        held |= quantize(name.removesuffix(".weight"), weight)[0] if is_layer else {name: weight}
    save_file({name: tensor.contiguous() for name, tensor in held.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
