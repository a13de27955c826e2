"""Lean networks, which run Llama-shaped blocks with little Python overhead, and taps, which record features for heads.

In transformers, Python takes 0.2-0.3 ms per layer and token, more than a small model's arithmetic. A lean block has the
weights of a transformers layer, and computes four products, two norms and one attention operation. A model of one
of the `ARCHITECTURES` becomes a lean network if its blocks have no parts other than those in `KNOWN`; all other models
run on transformers. `model_check` compares the results of a lean network with those of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from codespec.backends.torch.attention import Seam, attend
from codespec.backends.torch.rowwise import add_rms_norm, make_angles, rms_norm, rotate, silu_mul
from codespec.errors import ModelError


class Taps:
    """The outputs of `layers` in the last forward pass."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self._kept: dict[int, Tensor] = {}

    def see(self, layer: int, module: nn.Module, inputs: Any, output: Any) -> None:
        """Record a layer's output [N, width]; this method is a forward hook of the layer."""
        if isinstance(module, LeanBlock):
            rows, fed = output
            self._kept[layer] = rows + fed
        else:
            rows = output[0] if isinstance(output, tuple) else output
            self._kept[layer] = rows[0]  # a flat forward pass is a batch of one

    def take(self, dtype: torch.dtype) -> Tensor | None:
        """Return the outputs [N, layers, width] of the last forward pass, or None if it skipped a tapped layer."""
        kept, self._kept = self._kept, {}
        if kept.keys() != set(self.layers):
            return None
        return torch.stack([kept[layer].to(dtype) for layer in self.layers], dim=1)


def attach_taps(network: Any, taps: Taps) -> None:
    """Record a network's layer outputs in `taps` instead of earlier taps; raise ModelError if a layer is missing."""
    layers = getattr(network, "blocks", None)
    if layers is None:
        decoder = network.get_decoder() if hasattr(network, "get_decoder") else network
        layers = getattr(decoder, "layers", getattr(decoder, "h", None))
    if not isinstance(layers, nn.ModuleList):
        what = f"A head can't read the layers of {type(network).__name__}"
        raise ModelError(what, "remove the setting `head`, or choose another target")
    if not 0 <= min(taps.layers) <= max(taps.layers) < len(layers):
        what = f"The head reads layer {max(taps.layers)}, but the target has only {len(layers)} layers"
        raise ModelError(what, "set `head` to a head that was trained for this target")
    for handle in getattr(network, "codespec_taps", ()):
        handle.remove()
    network.codespec_taps = [layers[index].register_forward_hook(partial(taps.see, index)) for index in taps.layers]


ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
HEAD_NORMS = ("q_norm", "k_norm")  # Qwen3's
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
KNOWN = {  # a block with any other part is not supported
    "": {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"},
    "self_attn": {*PROJECTIONS, *HEAD_NORMS},
    "mlp": {"gate_proj", "up_proj", "down_proj", "act_fn"},
}


class LeanBlock(nn.Module):
    """One decoder layer. `attention` is the module of transformers, which holds the layer's settings."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.attention = layer.self_attn
        self.qkv = fuse(self.attention.q_proj, self.attention.k_proj, self.attention.v_proj)
        self.out = self.attention.o_proj
        self.gate_up = fuse(layer.mlp.gate_proj, layer.mlp.up_proj)
        self.down = layer.mlp.down_proj
        self.before = LeanNorm(layer.input_layernorm)
        self.after = LeanNorm(layer.post_attention_layernorm)
        norms = (getattr(self.attention, name, None) for name in HEAD_NORMS)
        self.head_norms = nn.ModuleList(LeanNorm(norm) for norm in norms if norm is not None)
        self.size = self.attention.head_dim
        self.kv_heads = self.attention.k_proj.out_features // self.size
        self.heads = self.attention.q_proj.out_features // self.size
        self.scaling = self.attention.scaling
        # Mistral's window is in its configuration, not in the attention module.
        is_mistral = type(self.attention).__name__ == "MistralAttention"
        self.window = getattr(self.attention.config if is_mistral else self.attention, "sliding_window", None)

    def forward(self, rows: Tensor, fed: Tensor | None, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        """Run the layer on rows [N, hidden] + `fed`; return `rows` and `fed`, whose sum is the layer's output."""
        rows, normed = (rows, self.before(rows)) if fed is None else self.before.of_sum(rows, fed)
        rows, normed = self.after.of_sum(rows, self.out(self.attend(self.qkv(normed), cosine, sine)))
        return rows, self.down(silu_mul(self.gate_up(normed)))

    def attend(self, mixed: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return attention [N, heads * size], given fused queries, keys and values [N, (heads + 2 kv_heads) * size]."""
        count, q, k = mixed.shape[0], self.heads, self.kv_heads
        mixed = mixed.view(count, q + 2 * k, self.size)
        rotated = mixed[:, : q + k]
        if self.head_norms:
            rotated = torch.cat([self.head_norms[0](rotated[:, :q]), self.head_norms[1](rotated[:, q:])], dim=1)
        rotated = rotate(rotated, cosine, sine).transpose(0, 1)[None]
        values = mixed[:, q + k :].transpose(0, 1)[None]
        out, _ = attend(self.attention, rotated[:, :q], rotated[:, q:], values, None, self.scaling, self.window)
        return out.reshape(count, q * self.size)


class LeanNetwork(nn.Module):
    """A whole model of lean blocks, with transformers' call signature."""

    def __init__(self, network: Any, seam: Seam) -> None:
        super().__init__()
        self.embed = network.model.embed_tokens
        self.angles = AngleTable(network.model.rotary_emb, seam)
        self.blocks = nn.ModuleList()
        for layer in network.model.layers:
            self.blocks.append(LeanBlock(layer))
            for name in PROJECTIONS:  # keep only the fused copies
                delattr(layer.self_attn, name)
            delattr(layer, "mlp")
        self.norm = LeanNorm(network.model.norm)
        self.head = network.lm_head

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, logits_to_keep: Tensor, use_cache: bool
    ) -> SimpleNamespace:
        """Map token ids and positions [1, N] to `logits` [1, kept rows, vocabulary]."""
        rows: Tensor = self.embed(input_ids[0])
        fed: Tensor | None = None
        cosine, sine = self.angles.at(rows, position_ids)
        if rows.device.type == "cpu":  # norms need float32 anyway, and sums avoid bfloat16 rounding
            rows = rows.float()
        for block in self.blocks:
            rows, fed = block(rows, fed, cosine, sine)
        assert fed is not None
        normed = self.norm.of_sum(rows[logits_to_keep], fed[logits_to_keep])[1]
        return SimpleNamespace(logits=self.head(normed)[None])


class AngleTable(nn.Module):
    """Cosines and sines for `rotate`, in a table that saves ten small operations per step, except in device steps."""

    def __init__(self, rotary: Any, seam: Seam | None = None) -> None:
        super().__init__()
        self.rotary, self.seam = rotary, seam
        self.table: tuple[Tensor, ...] = ()

    def at(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine [N, 1, size] for positions [1, N], in the dtype of `rows`."""
        if self.seam is not None and self.seam.context is not None and self.seam.context.rows is not None:
            return make_angles(*(part[0, :, None] for part in self.rotary(rows, positions)))
        needed = int(positions.max()) + 1 if positions.numel() else 1
        if not self.table or len(self.table[0]) < needed:
            every = torch.arange(1 << (needed - 1).bit_length(), device=rows.device)[None]
            self.table = make_angles(*(part[0, :, None] for part in self.rotary(rows, every)))
        cosine, sine = self.table
        return cosine[positions[0]], sine[positions[0]]


class LeanNorm(nn.Module):
    """A root-mean-square norm (Zhang and Sennrich 2019) with the weight and epsilon of a transformers norm."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, rows: Tensor) -> Tensor:
        """Normalize over the last dimension."""
        return rms_norm(rows, self.weight, self.eps)

    def of_sum(self, rows: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of `rows` and `added`, and the norm of that sum."""
        return add_rms_norm(rows, added, self.weight, self.eps)


def make_lean(network: nn.Module, seam: Seam) -> LeanNetwork | None:
    """Return a lean network with the weights of a model, or None if the model's blocks are not Llama-shaped."""
    whole: Any = network
    if type(network).__name__ not in ARCHITECTURES or whole.config.hidden_act not in ("silu", "swish"):
        return None
    layers, rotated = whole.model.layers, 2 * len(whole.model.rotary_emb.inv_freq)
    if not layers or any(rotated != layer.self_attn.head_dim for layer in layers):
        return None
    parts = [(layer.get_submodule(path), known) for layer in layers for path, known in KNOWN.items()]
    if any(not {name for name, _ in part.named_children()} <= known for part, known in parts):
        return None
    return LeanNetwork(whole, seam)


def fuse(*layers: nn.Linear) -> nn.Linear:
    """Fuse several projections of the same input into one linear layer."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    biased = layers[0].bias is not None
    fused = nn.Linear(weight.shape[1], weight.shape[0], bias=biased, device="meta")
    fused.weight = nn.Parameter(weight, requires_grad=False)
    if biased:
        fused.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]), requires_grad=False)
    return fused
