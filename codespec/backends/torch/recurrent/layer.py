"""Base of all recurrent layers: gather rows and states, compute row by row, and keep the states that a rollback needs.

Each row is one step of the recurrence: a few small operations whose shapes do not depend on the batch, so a row's bits
never depend on other rows. Everything that is not recurrent (the convolution, gates,
norms) is computed for all rows at once, element by element or within a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from codespec.backends.torch.attention import Seam
from codespec.backends.torch.recurrent.states import LayerStates, Plan, StateShape
from codespec.backends.torch.rowwise import steady

Step = Callable[[Tensor, Tensor, Tensor | None], None]  # reads a state, writes the next state and the row's output


class RecurrentLayer(nn.Module):
    """A layer that replaces transformers' own, with its weights. Subclasses define the recurrence."""

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
        """Return whether this class computes the layer."""
        raise NotImplementedError

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the recurrence's inputs [N, channels + more] and the output gate, for rows [N, hidden]."""
        raise NotImplementedError

    def prepare(self, mixed: Tensor, more: Tensor) -> list[Step]:
        """Return a step for each row.

        `mixed` [N, channels] holds the convolved and activated inputs, `more` [N, …] the others.
        """
        raise NotImplementedError

    def finish(self, out: Tensor, gate: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the layer's output [N, hidden] from the recurrence's [N, *outputs]."""
        raise NotImplementedError

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        """Compute all rows [1, N, hidden] of a forward, each after the rows of its own sequence."""
        context = self.codespec_seam.context
        assert context is not None and context.states is not None
        store = context.states.layers[self.layer_idx]
        rows, gate = self.project(hidden_states[0])
        begins = [span.begin for span in context.spans]
        parts: list[Tensor] = []
        for plan, begin in zip(context.plans, begins, strict=True):
            parts.append(torch.cat([store.rows[plan.slot, plan.recorded], rows[begin : begin + plan.rows]]))
        steps = self._steps(parts)
        out = rows.new_empty((len(rows), *self.outputs), dtype=torch.float32)
        at = 0
        for plan, begin, part in zip(context.plans, begins, parts, strict=True):
            self._run(store, plan, part, steps[at:], out[begin : begin + plan.rows])
            at += len(part)
        return self.finish(out, gate, hidden_states.dtype)[None]

    def _steps(self, parts: Sequence[Tensor]) -> list[Step]:
        """Return a step for each row of the parts, which begin with rows that only the convolution reads.

        Steps of rows that overlap two parts are never taken.
        """
        rows = (parts[0] if len(parts) == 1 else torch.cat(list(parts))).float()
        mixed = convolve(rows[:, : self.channels], self.kernel, self.conv_bias)
        mixed = steady(functional.silu, mixed) if self.activated else mixed
        return self.prepare(mixed, rows[self.history :, self.channels :])

    def _run(self, store: LayerStates, plan: Plan, part: Tensor, steps: Sequence[Step], out: Tensor) -> None:
        """Run the steps of one sequence, and keep the states and rows that later forwards need."""
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

    def _keep(self, store: LayerStates, plan: Plan, part: Tensor, position: int, source: int) -> None:
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


def inverse_rms(rows: Tensor, eps: float) -> Tensor:
    """Return the inverse root of the mean square [*, 1] of float32 rows [*, size], row by row."""
    squares: Tensor = torch.linalg.vecdot(rows, rows)
    return squares.mul_(1 / rows.shape[-1]).add_(eps).rsqrt_()[..., None]


def names_of(module: nn.Module) -> set[str]:
    """Return the names of a module's parts and own parameters."""
    return {*module._modules, *(name for name, weight in module._parameters.items() if weight is not None)}
