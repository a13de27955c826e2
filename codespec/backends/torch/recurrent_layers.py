"""Recurrent layers of known kinds, computed row by row, with the states and rows that a rollback needs.

Each row is one step of the recurrence: a few small operations whose shapes do not depend on the batch, so a row's bits
never depend on other rows. Everything that is not recurrent (the convolution, gates, norms) is computed for all rows at
once, element by element or within a row.

In a gated delta net (Yang et al. 2024, "Gated Delta Networks"), as in Qwen3-Next, Qwen3.5 and OLMo-Hybrid, a head's
state S [key size, value size] decays, S ← e^g·S, then the value stored for the key is replaced with a new one,
S ← S + k ⊗ β·(v − kᵀS), and the output is qᵀS. In transformers, prompts are computed in chunks of 64 rows, and the
rounding depends on where the chunks begin. On a CPU, row by row is about as fast as in chunks (lab/LOG.md).

A gated short convolution, as in LFM2, computes C · conv(B · x); the only state of the layer is the last few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from codespec.backends.torch.attention import Seam
from codespec.backends.torch.recurrent_states import LayerStates, StatePlan, StateShape
from codespec.backends.torch.rowwise import steady

Step = Callable[[Tensor, Tensor, Tensor | None], None]  # reads a state, writes the next state and the row's output


class RecurrentLayer(nn.Module):
    """Replaces a recurrent layer of transformers, with the same weights. Subclasses define the step for each row."""

    layer_idx: int
    shape: StateShape
    outputs: tuple[int, ...]  # shape of a row's output
    activated = True  # whether SiLU follows the convolution
    codespec_seam: Seam
    kernel: Tensor
    conv_bias: Tensor | None

    def __init__(self, layer_idx: int, conv: nn.Conv1d) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.register_buffer("kernel", conv.weight.detach()[:, 0].t().float().contiguous(), persistent=False)
        self.register_buffer("conv_bias", None if conv.bias is None else conv.bias.detach().float(), persistent=False)
        self.channels: int = conv.weight.shape[0]
        self.history: int = conv.weight.shape[-1] - 1

    @classmethod
    def fits(cls, mixer: nn.Module) -> bool:
        """Return whether this class can replace the layer `mixer`."""
        raise NotImplementedError

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs [N, channels + more] of the steps and the output gate, for rows [N, hidden]."""
        raise NotImplementedError

    def prepare(self, mixed: Tensor, more: Tensor) -> list[Step]:
        """Return a step for each row of the convolved and activated inputs [N, channels] and of `more` [N, …]."""
        raise NotImplementedError

    def finish(self, out: Tensor, gate: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the layer's output [N, hidden], given the outputs [N, *outputs] of the steps."""
        raise NotImplementedError

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        """Compute all rows [1, N, hidden] of a forward pass, each sequence in order."""
        context = self.codespec_seam.context
        assert context is not None and context.states is not None
        store = context.states.layers[self.layer_idx]
        rows, gate = self.project(hidden_states[0])
        begins = [span.begin for span in context.spans]
        parts: list[Tensor] = []
        for plan, begin in zip(context.plans, begins, strict=True):
            parts.append(torch.cat([store.rows[plan.slot, plan.recorded], rows[begin : begin + plan.rows]]))
        inputs = (parts[0] if len(parts) == 1 else torch.cat(parts)).float()
        mixed = convolve(inputs[:, : self.channels], self.kernel, self.conv_bias)
        mixed = steady(functional.silu, mixed) if self.activated else mixed
        # A part begins with rows that only the convolution reads. Steps that mix rows of two parts are never taken.
        steps = self.prepare(mixed, inputs[self.history :, self.channels :])
        out = rows.new_empty((len(rows), *self.outputs), dtype=torch.float32)
        at = 0
        for plan, begin, part in zip(context.plans, begins, parts, strict=True):
            self._run(store, plan, part, steps[at:], out[begin : begin + plan.rows])
            at += len(part)
        return self.finish(out, gate, hidden_states.dtype)[None]

    def _run(self, store: LayerStates, plan: StatePlan, part: Tensor, steps: Sequence[Step], out: Tensor) -> None:
        """Run the steps of one sequence, and store the states and rows that later forward passes need."""
        states, slot = store.states[plan.slot], plan.slot
        if plan.first in plan.copies:
            self._keep(store, plan, part, plan.first, plan.runs[0].source)
        for run in plan.runs:
            source, target = states[run.source], states[run.target]
            for position in range(run.first, run.last):
                row = out[position - plan.start] if position >= plan.start else None
                steps[position - plan.first](source, target, row)
                source = target
                if position + 1 in plan.copies:
                    self._keep(store, plan, part, position + 1, run.target)
        store.rows[slot, plan.write_at : plan.write_at + plan.kept_rows] = part[-plan.kept_rows :]

    def _keep(self, store: LayerStates, plan: StatePlan, part: Tensor, position: int, source: int) -> None:
        index, begin = plan.copies[position], position - plan.first
        store.states[plan.slot, 2 + index] = store.states[plan.slot, source]
        store.before[plan.slot, index] = part[begin : begin + self.history]


def convolve(rows: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve each channel of rows [N, channels] with its kernel [size, channels] -> [N - size + 1, channels]."""
    count = len(rows) - len(kernel) + 1
    out = rows[:count] * kernel[0]
    for offset in range(1, len(kernel)):
        out.add_(rows[offset : offset + count] * kernel[offset])
    return out if bias is None else out.add_(bias)


def names_of(module: nn.Module) -> set[str]:
    """Return the names of a module's direct submodules and parameters."""
    return {*module._modules, *(name for name, weight in module._parameters.items() if weight is not None)}


COMMON = {"conv1d", "dt_bias", "A_log"}
FUSED = {"in_proj_qkvz", "in_proj_ba", "norm", "out_proj"}  # Qwen3-Next: interleaved by key head
SINGLE = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "norm", "out_proj"}  # Qwen3.5
SEPARATE = {"q_proj", "k_proj", "v_proj", "a_proj", "b_proj", "g_proj", "o_norm", "o_proj"}  # OLMo-Hybrid
EPS = 1e-6  # of the norm of keys and queries


class GatedDeltaNet(RecurrentLayer):
    """A gated delta net with transformers' weights."""

    in_proj_qkvz: Any
    in_proj_ba: Any
    gate: Any
    out_proj: Any
    norm: Any
    rate: Tensor
    step_bias: Tensor

    def __init__(self, mixer: Any) -> None:
        super().__init__(mixer.layer_idx, mixer.conv1d)
        self.fused = hasattr(mixer, "in_proj_qkvz")
        if hasattr(mixer, "q_proj"):
            self.inputs = nn.ModuleList([mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.b_proj, mixer.a_proj])
            self.gate, self.norm, self.out_proj = mixer.g_proj, mixer.o_norm, mixer.o_proj
        else:
            self.norm, self.out_proj = mixer.norm, mixer.out_proj
            if self.fused:
                self.in_proj_qkvz, self.in_proj_ba = mixer.in_proj_qkvz, mixer.in_proj_ba
            else:
                self.inputs = nn.ModuleList([mixer.in_proj_qkv, mixer.in_proj_b, mixer.in_proj_a])
                self.gate = mixer.in_proj_z
        self.most_beta = 2.0 if getattr(mixer, "allow_neg_eigval", False) else 1.0
        self.key_heads: int = mixer.num_k_heads
        self.heads: int = mixer.num_v_heads
        self.key_size: int = mixer.head_k_dim
        self.value_size: int = mixer.head_v_dim
        self.register_buffer("rate", -mixer.A_log.detach().float().exp(), persistent=False)
        self.register_buffer("step_bias", mixer.dt_bias.detach().float(), persistent=False)
        self.shape = StateShape(
            (self.heads, self.key_size, self.value_size), self.history, self.channels + 2 * self.heads
        )
        self.outputs = (self.heads, 1, self.value_size)

    @classmethod
    def fits(cls, mixer: nn.Module) -> bool:
        """Return whether the layer has exactly the parts of a layer of Qwen3-Next, Qwen3.5 or OLMo-Hybrid."""
        return names_of(mixer) in (COMMON | FUSED, COMMON | SINGLE, COMMON | SEPARATE)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return concatenated queries, keys, values and inputs of β and g, and the gate [N, heads, value size]."""
        if not self.fused:
            rows = [layer(hidden) for layer in self.inputs]
            return torch.cat(rows, dim=1), self.gate(hidden).view(-1, self.heads, self.value_size)
        count, share = len(hidden), self.heads // self.key_heads
        sizes = [self.key_size, self.key_size, share * self.value_size, share * self.value_size]
        mixed = self.in_proj_qkvz(hidden).view(count, self.key_heads, sum(sizes)).split(sizes, dim=2)
        more = self.in_proj_ba(hidden).view(count, self.key_heads, 2 * share).split(share, dim=2)
        query, key, value, gate = (part.reshape(count, -1) for part in mixed)
        rows = [query, key, value, *(part.reshape(count, -1) for part in more)]
        return torch.cat(rows, dim=1), gate.view(count, self.heads, self.value_size)

    def prepare(self, mixed: Tensor, more: Tensor) -> list[Step]:
        """Return a step for each row. Queries and keys are normalized and repeated for the heads that share them."""
        count, size = len(mixed), self.key_heads * self.key_size
        query, key = (self._normed(mixed[:, at : at + size]) for at in (0, size))
        query = query * self.key_size**-0.5
        value = mixed[:, 2 * size :].reshape(count, self.heads, 1, self.value_size)
        beta = steady(torch.sigmoid, more[:, : self.heads].contiguous()).view(count, self.heads, 1, 1) * self.most_beta
        raised = steady(functional.softplus, more[:, self.heads :] + self.step_bias)
        decay = steady(torch.exp, raised * self.rate).view(count, self.heads, 1, 1)
        columns = key.view(count, self.heads, self.key_size, 1)
        parts = (decay, key, columns, value, beta, query)
        return [partial(step, *row) for row in zip(*(part.unbind(0) for part in parts), strict=True)]

    def finish(self, out: Tensor, gate: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalize each head, then apply the gate and the output projection."""
        rows = out[:, :, 0]
        squares: Tensor = torch.linalg.vecdot(rows, rows)
        inverse_rms = squares.mul_(1 / rows.shape[-1]).add_(self.norm.variance_epsilon).rsqrt_()
        normed = (rows * inverse_rms[..., None]).to(dtype)
        gated = self.norm.weight * normed * steady(functional.silu, gate.float().contiguous())
        projected: Tensor = self.out_proj(gated.to(dtype).flatten(1))
        return projected

    def _normed(self, rows: Tensor) -> Tensor:
        """Return unit vectors [N, heads, 1, key size] for the heads in rows [N, key heads · key size]."""
        split = rows.reshape(len(rows), self.key_heads, self.key_size)
        squares: Tensor = torch.linalg.vecdot(split, split)
        normed = split * squares.add_(EPS).rsqrt_()[..., None]
        return normed.repeat_interleave(self.heads // self.key_heads, dim=1)[:, :, None].contiguous()


def step(
    decay: Tensor,
    key: Tensor,
    column: Tensor,
    value: Tensor,
    beta: Tensor,
    query: Tensor,
    source: Tensor,
    target: Tensor,
    out: Tensor | None,
) -> None:
    """Compute in `target` the state [heads, key size, value size] after a row, and in `out` the row's output."""
    torch.mul(source, decay, out=target)
    missed = torch.bmm(key, target).neg_().add_(value).mul_(beta)
    target.baddbmm_(column, missed)
    if out is not None:
        torch.bmm(query, target, out=out)


PARTS = {"conv", "in_proj", "out_proj"}


class ShortConvolution(RecurrentLayer):
    """A gated short convolution of each channel, with transformers' weights."""

    activated = False

    def __init__(self, mixer: Any) -> None:
        super().__init__(mixer.layer_idx, mixer.conv)
        self.in_proj, self.out_proj = mixer.in_proj, mixer.out_proj
        self.shape = StateShape((1,), self.history, self.channels)
        self.outputs = (self.channels,)

    @classmethod
    def fits(cls, mixer: nn.Module) -> bool:
        """Return whether the layer has exactly the parts of LFM2's short convolution."""
        return names_of(mixer) == PARTS and isinstance(mixer.conv, nn.Conv1d)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the products B · x and the gate C, [N, channels] each."""
        first, gate, inputs = self.in_proj(hidden).chunk(3, dim=1)
        return first * inputs, gate

    def prepare(self, mixed: Tensor, more: Tensor) -> list[Step]:
        """Return steps that only copy the convolved rows to the output."""
        return [partial(keep_row, row) for row in mixed.unbind(0)]

    def finish(self, out: Tensor, gate: Tensor, dtype: torch.dtype) -> Tensor:
        """Apply the gate and the output projection."""
        projected: Tensor = self.out_proj((gate.float() * out).to(dtype))
        return projected


def keep_row(row: Tensor, source: Tensor, target: Tensor, out: Tensor | None) -> None:
    """Copy the row to the output, because a convolution has no state beyond the stored rows."""
    if out is not None:
        out.copy_(row)
