"""Mamba2 (Dao and Gu 2024, "Transformers are SSMs"), as in Mamba2, Bamba, GraniteMoeHybrid and Falcon-H1.

A head's state S [head size, state size] decays and adds the input: S ← e^(A·dt)·S + dt·x ⊗ B; the output is S·C + D·x.

Rows are computed in chunks of CHUNK positions (section 6 of the paper): a row reads the state before its chunk, and the
rows of its chunk up to itself as attention does. The chunks lie on a fixed grid, and all arrays have the size of a
whole chunk, so a row always has the same place in a computation of the same shape; rows after it count as zero. Its
bits therefore depend neither on the number of rows that follow nor on the rest of the batch.

Falcon-H1 multiplies the layer's input and each part of its projection by constants, and may omit the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from codespec.models.recurrent.layer import RecurrentLayer, inverse_rms, names_of
from codespec.models.recurrent.states import GRID, LayerStates, Plan, StateShape
from codespec.models.rowwise import steady

PARTS = {"act", "conv1d", "in_proj", "norm", "out_proj", "dt_bias", "A_log", "D"}
CHUNK = GRID
BLOCK = 8  # rows of a chunk whose outputs are computed at once
GROUPS = ("group_size", "n_groups")  # a norm over groups of the outputs has one of these attributes


@dataclass(frozen=True, slots=True)
class Inputs:
    """The recurrence's inputs for each row: A·dt [N, heads], dt·x [N, heads, size], B and C [N, groups, state]."""

    decays: Tensor
    scaled: Tensor
    keys: Tensor
    queries: Tensor

    def __getitem__(self, rows: slice) -> Inputs:
        return Inputs(self.decays[rows], self.scaled[rows], self.keys[rows], self.queries[rows])

    def chunk(self, first: int, last: int) -> Inputs:
        """Return rows first…last-1, padded with zeros to a whole chunk; A·dt becomes its running sum [heads, CHUNK].

        Whole chunks are copied too: the layout of a product's operands may decide how it rounds.
        """
        part = self[first:last]
        summed = _fill(part.decays).cumsum(0).t().contiguous()
        return Inputs(summed, _fill(part.scaled), _fill(part.keys), _fill(part.queries))


class Mamba2(RecurrentLayer):
    """A Mamba2 layer with transformers' weights."""

    in_proj: Any
    out_proj: Any
    norm: Any
    rate: Tensor
    step_bias: Tensor
    skip: Tensor
    multipliers: Tensor | None
    behind: Tensor

    def __init__(self, mixer: Any) -> None:
        super().__init__(mixer.layer_idx, mixer.conv1d)
        for name in ("in_proj", "out_proj", "norm"):
            setattr(self, name, getattr(mixer, name))
        self.heads: int = mixer.num_heads
        self.size: int = mixer.head_dim
        self.groups: int = mixer.n_groups
        self.state_size: int = mixer.ssm_state_size
        self.inner: int = mixer.intermediate_size
        self.least_step, self.most_step = mixer.time_step_limit
        self.input_multiplier: float = getattr(mixer, "ssm_in_multiplier", 1.0)
        multipliers = getattr(mixer, "mup_vector", None)
        self.register_buffer("multipliers", None if multipliers is None else multipliers.flatten(), persistent=False)
        self.normed = not isinstance(mixer.norm, nn.Identity)
        self.register_buffer("rate", -mixer.A_log.detach().float().exp(), persistent=False)
        self.register_buffer("step_bias", mixer.dt_bias.detach().float(), persistent=False)
        self.register_buffer("skip", mixer.D.detach().float()[:, None], persistent=False)
        self.shape = StateShape(
            (self.heads, self.size, self.state_size), self.history, self.channels + self.heads, CHUNK
        )
        self.outputs = (self.heads, self.size)
        behind = torch.arange(CHUNK)[None] > torch.arange(CHUNK)[:, None]
        self.register_buffer("behind", behind, persistent=False)

    @classmethod
    def fits(cls, mixer: nn.Module) -> bool:
        """Return whether the layer has exactly the parts of a Mamba2 layer."""
        if names_of(mixer) != PARTS or not isinstance(getattr(mixer, "time_step_limit", None), tuple | list):
            return False
        norm: Any = mixer.norm
        gate_first = any(hasattr(norm, name) for name in GROUPS) and not getattr(norm, "norm_before_gate", False)
        return isinstance(norm, nn.Identity) or gate_first

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return x, B, C and the time steps' inputs side by side, and the output gate [N, inner]."""
        if self.multipliers is None:
            both: Tensor = self.in_proj(hidden)
        else:
            both = self.in_proj(hidden * self.input_multiplier) * self.multipliers
        return both[:, self.inner :], both[:, : self.inner]

    def prepare(self, mixed: Tensor, more: Tensor) -> tuple[Inputs, Tensor | None]:
        """Return the inputs of the rows' recurrence, and D·x."""
        count, shared = len(mixed), self.groups * self.state_size
        inputs = mixed[:, : self.inner].reshape(count, self.heads, self.size)
        parts = mixed[:, self.inner : self.inner + 2 * shared].reshape(count, 2, self.groups, self.state_size)
        length = steady(functional.softplus, more + self.step_bias).clamp_(self.least_step, self.most_step)
        scaled = inputs * length[:, :, None]
        return Inputs(length * self.rate, scaled, parts[:, 0], parts[:, 1]), inputs * self.skip

    def finish(self, out: Tensor, added: Tensor | None, gate: Tensor, dtype: torch.dtype) -> Tensor:
        """Add D·x, apply the gate, normalize each group if there is a norm, and project."""
        assert added is not None
        rows = (out + added).flatten(1) * steady(functional.silu, gate.float().contiguous())
        if self.normed:
            split = rows.view(len(rows), -1, self.inner // self.groups)
            normed = (split * inverse_rms(split, self.norm.variance_epsilon)).flatten(1).to(dtype)
            rows = self.norm.weight * normed
        projected: Tensor = self.out_proj(rows.to(dtype))
        return projected

    def _run(self, store: LayerStates, plan: Plan, part: Tensor, steps: Inputs, out: Tensor) -> None:
        """Compute the chunks of one sequence, and keep the states and rows that later forwards need."""
        states = store.states[plan.slot]
        for run in plan.runs:
            source = run.source
            for begin in range(run.first, run.last, CHUNK):
                end = min(begin + CHUNK, run.last)
                chunk = steps.chunk(begin - plan.first, end - plan.first)
                if end > plan.start:
                    new = max(begin, plan.start)
                    rows = self._outputs(chunk, states[source], new - begin, end - begin)
                    out[new - plan.start : end - plan.start] = rows
                if end < run.last or run.source == run.target or end in plan.copies:
                    self._advance(chunk, states[source], states[run.target])
                    source = run.target
                if end in plan.copies:
                    self._keep(store, plan, part, end, source)
        store.rows[plan.slot, plan.write_at : plan.write_at + plan.kept_rows] = part[-plan.kept_rows :]

    def _outputs(self, chunk: Inputs, state: Tensor, first: int, last: int) -> Tensor:
        """Return the outputs [last - first, heads, size] of a chunk's rows, without D·x."""
        grouped = state.view(self.groups, -1, self.state_size).transpose(1, 2)
        keys, inputs = chunk.keys.permute(1, 2, 0), chunk.scaled.transpose(0, 1)
        blocks, at = [], first // BLOCK * BLOCK
        for begin in range(at, last, BLOCK):
            rows = slice(begin, begin + BLOCK)
            queries, summed = chunk.queries[rows].transpose(0, 1), chunk.decays[:, rows, None]
            gaps = (summed - chunk.decays[:, None]).masked_fill_(self.behind[rows], -torch.inf).exp_()
            scores = torch.bmm(queries, keys)[:, None] * gaps.view(self.groups, -1, BLOCK, CHUNK)
            within = torch.bmm(scores.view(self.heads, BLOCK, CHUNK), inputs).transpose(0, 1)
            before = torch.bmm(queries, grouped).transpose(0, 1).reshape(BLOCK, self.heads, self.size)
            blocks.append(torch.addcmul(within, before, summed.exp().transpose(0, 1)))
        return torch.cat(blocks)[first - at : last - at]

    def _advance(self, chunk: Inputs, source: Tensor, target: Tensor) -> None:
        """Compute the state after a whole chunk from the state before it."""
        last = chunk.decays[:, -1:]
        inputs = (chunk.scaled * (last - chunk.decays).exp().t()[..., None]).view(CHUNK, self.groups, -1)
        added = torch.bmm(inputs.permute(1, 2, 0), chunk.keys.transpose(0, 1)).view(source.shape)
        torch.addcmul(added, source, last.exp()[..., None], out=target)


def _fill(rows: Tensor) -> Tensor:
    """Return rows [N, …], padded with zeros to CHUNK."""
    filled = rows.new_zeros(CHUNK, *rows.shape[1:])
    filled[: len(rows)] = rows
    return filled
