"""A small Llama for training, with its loss.

Parameter names and arithmetic are those of transformers' `LlamaForCausalLM` with tied embeddings, so weights can be
copied by name. It has no caches, masks or hooks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

QUERY_BLOCK = 128
IGNORED = -100  # label of a position without loss
CHUNK = 512  # tokens per chunk of logits


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a model; `theta` is the rotary base."""

    vocab_size: int
    hidden_size: int
    layers: int
    query_heads: int
    kv_heads: int
    mlp_size: int
    head_size: int = 64
    max_positions: int = 2048
    theta: float = 10000.0
    norm_epsilon: float = 1e-5

    def to_config(self) -> dict[str, Any]:
        """Return the sizes under the names of `transformers.LlamaConfig`."""
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.query_heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.mlp_size,
            "head_dim": self.head_size,
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.norm_epsilon,
            "tie_word_embeddings": True,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self)


def rotary_table(shape: LlamaShape, length: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines by position, each [length, head_size] (Su et al. 2021, half-split layout)."""
    exponents = torch.arange(0, shape.head_size, 2, dtype=torch.float32) / shape.head_size
    angles = torch.outer(torch.arange(length, dtype=torch.float32), 1.0 / shape.theta**exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each half-split pair of features by its position's angle; x is [B, heads, T, head_size]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention; q [B, heads, T, head_size], k and v [B, kv_heads, T, head_size]."""
    if q.is_cuda:
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return _attend_in_blocks(q, k, v)


def _attend_in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with each block of queries to the keys up to its end; the heads of a group are rows of one product.

    On a CPU this takes 0.45 of the time of torch's kernel, which took a third of a training step (lab/LOG.md).
    """
    batch, heads, length, size = q.shape
    groups = k.shape[1]
    q, k, v = (q * size**-0.5).unflatten(1, (groups, -1)), k.flatten(0, 1), v.flatten(0, 1)
    parts = []
    for start in range(0, length, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, length)
        rows = q[:, :, :, start:end]
        scores = torch.bmm(rows.reshape(batch * groups, -1, size), k[:, :end].transpose(1, 2))
        hidden = torch.ones(end - start, end, dtype=torch.bool, device=q.device).triu(start + 1)
        scores = scores.view(batch * groups, -1, end - start, end).masked_fill(hidden, -torch.inf)
        mixed = torch.bmm(scores.softmax(-1).flatten(1, 2), v[:, :end])
        parts.append(mixed.view(batch, heads, end - start, size))
    return torch.cat(parts, dim=2)


class _HeadLoss(torch.autograd.Function):
    """Cross-entropy whose forward computes the gradients chunk by chunk.

    Backward only scales them, and [tokens, vocab] logits never exist as a whole. A chunk fits in the CPU caches, which
    matters for small models. The idea is that of fused linear cross-entropy kernels (Hsu et al. 2024, Liger).
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        head = weight.to(hidden.dtype)
        counted = labels != IGNORED
        scale = 1.0 / counted.sum().clamp(min=1)
        total = torch.zeros((), device=hidden.device)
        d_hidden = torch.empty_like(hidden)
        d_head = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, start + CHUNK)
            loss, d_logits = _chunk_loss(hidden[rows], head, labels[rows], counted[rows], scale)
            total += loss
            torch.mm(d_logits, head, out=d_hidden[rows])
            d_head += d_logits.T @ hidden[rows]
        ctx.save_for_backward(d_hidden, d_head)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        d_hidden, d_head = ctx.saved_tensors
        return d_hidden * grads[0].to(d_hidden.dtype), d_head * grads[0], None


def _chunk_loss(hidden: Tensor, head: Tensor, labels: Tensor, counted: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    logits = (hidden @ head.T).float()  # [chunk, vocab]
    peak = logits.amax(dim=1, keepdim=True)
    logits.sub_(peak)
    picked = labels.clamp(min=0)[:, None]
    chosen = logits.gather(1, picked)[:, 0]
    logits.exp_()
    norm = logits.sum(dim=1)
    loss = ((norm.log() - chosen) * counted).sum() * scale
    weight = counted * scale
    logits.mul_((weight / norm)[:, None])
    logits.scatter_add_(1, picked, -weight[:, None])
    return loss, logits.to(hidden.dtype)


def head_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats of the logits `hidden @ weight.T`, skipping rows labelled `IGNORED`.

    hidden [N, width], weight [vocab, width], labels [N].
    """
    loss: Tensor = _HeadLoss.apply(hidden, weight, labels)  # type: ignore[no-untyped-call]
    return loss


class Norm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.epsilon)


class Attention(nn.Module):
    """Causal attention with grouped heads."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.head_size = shape.head_size
        kv_size = shape.kv_heads * shape.head_size
        self.q_proj = nn.Linear(shape.hidden_size, shape.query_heads * shape.head_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(shape.query_heads * shape.head_size, shape.hidden_size, bias=False)

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.head_size))
        return heads.transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = rotate(self._heads(self.q_proj(x)), cos, sin)
        k = rotate(self._heads(self.k_proj(x)), cos, sin)
        v = self._heads(self.v_proj(x))
        mixed = attend(q, k, v)
        projected: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return projected


class Mlp(nn.Module):
    """Gated feed-forward with SiLU (Shazeer 2020)."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.mlp_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.mlp_size, bias=False)
        self.down_proj = nn.Linear(shape.mlp_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class Layer(nn.Module):
    """Attention and MLP, each after a norm and with a residual connection."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size, shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.norm_epsilon)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class Backbone(nn.Module):
    """Embedding, layers and the final norm."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden_size, shape.norm_epsilon)

    def forward(self, ids: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x: Tensor = self.embed_tokens(ids)
        if torch.is_autocast_enabled(x.device.type):
            # A float32 residual stream would be cast before every product.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for layer in self.layers:
            x = layer(x, cos, sin)
        normed: Tensor = self.norm(x)
        return normed


class TinyLlama(nn.Module):
    """A causal language model with tied embeddings."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: LlamaShape, *, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.model = Backbone(shape)
        cos, sin = rotary_table(shape, shape.max_positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        residual = 0.02 / (2 * self.shape.layers) ** 0.5
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=residual if last else 0.02, generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [B, T, vocab] for ids [B, T]."""
        length = ids.shape[1]
        hidden = self.model(ids, *self._angles(length, ids))
        logits: Tensor = functional.linear(hidden, self.model.embed_tokens.weight)
        return logits

    def _angles(self, length: int, ids: Tensor) -> tuple[Tensor, Tensor]:
        kind = ids.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.cos.dtype
        return self.cos[:length].to(dtype), self.sin[:length].to(dtype)

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats over labels other than `IGNORED`; both arguments are [B, T]."""
        hidden = self.model(ids, *self._angles(ids.shape[1], ids))
        return head_loss(hidden.flatten(0, 1), self.model.embed_tokens.weight, labels.flatten())
