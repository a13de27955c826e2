"""A Llama-shaped model of int8 matrices, called like transformers' own: the block of `models.lean` on quantized rows.

A layer is four integer products; the norms before two of them, and what lies between, only quantize. The residual
stream, the rotary embedding and attention are float32. Knows weights and shapes, no files and no requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from codespec.errors import ModelError
from codespec.models.attention import Seam, attend
from codespec.models.int8.kernels import Choice
from codespec.models.int8.linear import Int8Linear, quantize, quantize_norm
from codespec.models.int8.recipe import EMBEDDING, HEAD, stream_rotation
from codespec.models.int8.rotation import mix
from codespec.models.lean import Angles, Output, attention_window
from codespec.models.rowwise import rms_norm, rotate, silu_mul
from codespec.models.taps import Taps

Read = Callable[[str], Tensor]  # a converted tensor by its name; KeyError where there is none


class Int8Block(nn.Module):
    """One layer. `attention` is transformers' module without weights, which holds the seam and the layer's settings."""

    def __init__(self, layer: Any, number: int, read: Read, eps: float, choice: Choice) -> None:
        super().__init__()
        self.attention: Any = layer.self_attn
        path = f"model.layers.{number}"
        self.qkv = read_linear(read, f"{path}.self_attn.qkv", choice, normed=True)
        self.out = read_linear(read, f"{path}.self_attn.out", choice)
        self.gate_up = read_linear(read, f"{path}.mlp.gate_up", choice, normed=True)
        self.down = read_linear(read, f"{path}.mlp.down", choice)
        attention, mlp = layer.self_attn, layer.mlp
        check_sizes(f"{path}.self_attn.qkv", self.qkv, attention.q_proj, attention.k_proj, attention.v_proj)
        check_sizes(f"{path}.self_attn.out", self.out, attention.o_proj)
        check_sizes(f"{path}.mlp.gate_up", self.gate_up, mlp.gate_proj, mlp.up_proj)
        check_sizes(f"{path}.mlp.down", self.down, mlp.down_proj)
        self.kernel, self.eps = choice.kernel, eps
        self.floor = torch.tensor([eps * self.qkv.in_features])
        self.head_norms: list[Tensor] = []
        if hasattr(self.attention, "q_norm"):
            self.head_norms = [read(f"{path}.self_attn.{name}.weight") for name in ("q_norm", "k_norm")]
        self.size: int = self.attention.head_dim
        self.heads = self.out.in_features // self.size
        self.kv_heads = (self.qkv.out_features // self.size - self.heads) // 2
        self.window = attention_window(self.attention)

    def forward(self, rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Float32 rows [N, hidden] → the same after this layer; cosine and sine are [N, 1, size]."""
        count, q, k = rows.shape[0], self.heads, self.kv_heads
        mixed = self.qkv.multiply(quantize_norm(rows, self.floor, self.kernel)).view(count, q + 2 * k, self.size)
        turned = mixed[:, : q + k]
        if self.head_norms:
            parts = zip((turned[:, :q], turned[:, q:]), self.head_norms, strict=True)
            turned = torch.cat([rms_norm(part, weight, self.eps) for part, weight in parts], dim=1)
        turned = rotate(turned, cosine, sine).transpose(0, 1)[None]
        values = mixed[:, q + k :].transpose(0, 1)[None]
        seen, _ = attend(
            self.attention, turned[:, :q], turned[:, q:], values, None, self.attention.scaling, self.window
        )
        rows = rows + self.out.multiply(quantize(seen.reshape(count, q * self.size), self.kernel))
        fed = silu_mul(self.gate_up.multiply(quantize_norm(rows, self.floor, self.kernel)))
        return rows + self.down.multiply(quantize(mix(fed), self.kernel))


class Int8Network(nn.Module):
    """A whole model of such blocks. `skeleton` is transformers' model without weights (on the device "meta")."""

    def __init__(self, skeleton: Any, seam: Seam, read: Read, choice: Choice) -> None:
        super().__init__()
        self.config = skeleton.config
        self.parameter_count = sum(part.numel() for part in skeleton.parameters())  # of the model before conversion
        self.eps: float = skeleton.model.norm.variance_epsilon
        self.embedding = read(EMBEDDING)
        self.angles = Angles(type(skeleton.model.rotary_emb)(self.config), seam)
        self.layer_type: Any = type(skeleton.model.layers[0])
        layers = enumerate(skeleton.model.layers)
        self.blocks = nn.ModuleList(Int8Block(layer, number, read, self.eps, choice) for number, layer in layers)
        self.kernel = choice.kernel
        self.floor = torch.tensor([self.eps * self.embedding.shape[1]])
        self.head = read_linear(read, HEAD, choice, normed=True)
        check_sizes(HEAD, self.head, skeleton.lm_head)
        if self.embedding.shape != skeleton.model.embed_tokens.weight.shape:
            raise mismatch(EMBEDDING)
        self.taps: Taps | None = None

    def forward(self, input_ids: Tensor, position_ids: Tensor, logits_to_keep: Tensor, use_cache: bool) -> Output:
        """ids and positions [1, N] → logits of the kept rows."""
        rows = self.embedding[input_ids[0]].float()
        cosine, sine = self.angles.at(rows, position_ids)
        for number, block in enumerate(self.blocks):
            rows = block(rows, cosine, sine)
            if self.taps is not None and number in self.taps.layers:  # a head was trained on the stream's own basis
                self.taps.see(number, stream_rotation(rows.shape[1]).turn_back(rows))
        return Output(self.head.multiply(quantize_norm(rows[logits_to_keep], self.floor, self.kernel))[None])


def read_linear(read: Read, name: str, choice: Choice, normed: bool = False) -> Int8Linear:
    """The layer of this name."""
    weight, scale, bias = read(f"{name}.weight"), read(f"{name}.scale"), read_optional(read, f"{name}.bias")
    return Int8Linear(weight, scale, bias, choice, normed)


def check_sizes(name: str, made: Int8Linear, *layers: nn.Linear) -> None:
    """Raises ModelError unless a matrix is as large, and as biased, as the layers of the configuration together."""
    out, biased = sum(layer.out_features for layer in layers), all(layer.bias is not None for layer in layers)
    if (made.out_features, made.in_features, made.bias is not None) != (out, layers[0].in_features, biased):
        raise mismatch(name)


def mismatch(name: str) -> ModelError:
    """The error for a weight that is not what config.json describes."""
    return ModelError(f"The weight {name} does not fit config.json: fetch or export the model again.")


def read_optional(read: Read, name: str) -> Tensor | None:
    """A tensor, or None where there is none of this name."""
    try:
        return read(name)
    except KeyError:
        return None
