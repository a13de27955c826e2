"""Shared parts of all training runs: budget, learning rate, dtype, optimizer, checkpoints and the loop.

A checkpoint holds the whole state of a run, and row `i` of the data depends only on the seed and `i`. So with a budget
in steps, a resumed run repeats the uninterrupted one bit for bit on the same machine.
"""

from __future__ import annotations

import hashlib
import io
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from codespec.errors import TrainingError
from codespec_lab.corpus.documents import write_atomically
from codespec_lab.progress import TrainingBar

LONGEST_STEP_SECONDS = 10.0  # a longer step was paused or swapped out
FASTER = 1.2  # minimum speed-up of bfloat16 to accept its rounding
PROBE = (512, 512, 512)
MIN_RATE = 0.01  # of the peak learning rate
_DIGEST = 32  # bytes of the SHA-256 at the start of a checkpoint
# Coefficients of the quintic iteration, which drives singular values to about 0.7 … 1.2 (Jordan et al.).
_QUINTIC = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limit of a run: minutes of working time, or steps (then a resumed run repeats exactly)."""

    minutes: float = 0.0
    steps: int = 0

    def progress(self, seconds: float, steps: int) -> float:
        """Return the share of the budget that is used, from 0 to 1."""
        done = steps / self.steps if self.steps else seconds / (60.0 * self.minutes)
        return min(1.0, done)


@dataclass(slots=True)
class RunState:
    """Progress of a run; `history` holds its scores on held-out code."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class Run(Protocol):
    """A model in training, as seen by `train`."""

    @property
    def state(self) -> RunState:
        """Progress so far."""
        ...

    @property
    def progress(self) -> float:
        """Share of the budget that is used."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume, as tensors and plain values."""
        ...


R = TypeVar("R", bound=Run)


def train(
    name: str,
    run: R,
    step: Callable[[], float],
    checkpoint: Path,
    *,
    checkpoint_seconds: float,
    longest_step: float = LONGEST_STEP_SECONDS,
    score: Callable[[], dict[str, float]] | None = None,
    score_at_checkpoints: bool = False,
    on_checkpoint: Callable[[R], None] | None = None,
) -> bool:
    """Take steps until the budget is used; return False if SIGTERM or SIGINT arrives first.

    `step` updates the model and returns the loss in nats; `score` measures it on held-out code. Save `checkpoint` every
    `checkpoint_seconds` of working time and at the end.
    """
    bar, state = TrainingBar(name), run.state
    saved = state.seconds

    def save(*, scored: bool) -> None:
        if score is not None and scored:
            _record(state, score(), bar)
        save_checkpoint(checkpoint, run.state_dict())
        if on_checkpoint is not None:
            on_checkpoint(run)

    with catching_signals() as interruption:
        while run.progress < 1.0 and not interruption.requested:
            _timed_step(run, step, bar, longest_step)
            if state.seconds - saved >= checkpoint_seconds:
                saved = state.seconds
                save(scored=score_at_checkpoints)
        save(scored=run.progress >= 1.0)
    return run.progress >= 1.0


def _timed_step(run: Run, step: Callable[[], float], bar: TrainingBar, longest: float) -> None:
    state, before, started = run.state, run.state.tokens, time.monotonic()
    loss = step()
    seconds = working_seconds(time.monotonic() - started, longest)
    state.seconds += seconds
    tokens = state.tokens - before
    bar.update(step=state.step, progress=run.progress, loss=loss, tokens=tokens, seconds=seconds, used=state.seconds)


def _record(state: RunState, scores: dict[str, float], bar: TrainingBar) -> None:
    state.history.append({"step": state.step, "tokens": state.tokens, "seconds": state.seconds, **scores})
    text = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in scores.items())
    bar.note(f"step {state.step}, {state.tokens / 1e6:.2f} M tokens, on held-out code: {text}")


def working_seconds(seconds: float, longest: float = LONGEST_STEP_SECONDS) -> float:
    """Return the part of a step's wall time that counts against the budget."""
    return min(seconds, longest)


def learning_rate_factor(step: int, progress: float, *, warmup_steps: int) -> float:
    """Return the learning-rate factor: linear warm-up over steps, then linear decay over the budget."""
    warm = min(1.0, (step + 1) / warmup_steps)
    return warm * max(MIN_RATE, 1.0 - progress)


@dataclass(slots=True)
class Interruption:
    """Flag set when SIGTERM or SIGINT requests a stop after the current step."""

    requested: bool = False


@contextmanager
def catching_signals() -> Iterator[Interruption]:
    """Turn SIGTERM and SIGINT into a request to stop while the block runs."""
    interruption = Interruption()

    def request(*_: object) -> None:
        interruption.requested = True

    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values atomically, after their SHA-256."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    write_atomically(path, hashlib.sha256(payload).digest() + payload)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a file that `save_checkpoint` wrote. Raise TrainingError if it is missing or corrupted."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise TrainingError(f"There is no checkpoint at {path}: train first, without --resume.") from error
    payload = data[_DIGEST:]
    if not payload or hashlib.sha256(payload).digest() != data[:_DIGEST]:
        raise TrainingError(f"The checkpoint {path} is corrupted; delete it and start without --resume.")
    state: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True)
    return state


def faster_dtype(device: str) -> str:
    """Return "bfloat16" if its matrix products are clearly faster (AMX, a GPU), else "float32"."""
    if device != "cpu":
        return "bfloat16"
    seconds = {name: _time_product(getattr(torch, name)) for name in ("float32", "bfloat16")}
    return "bfloat16" if seconds["float32"] > FASTER * seconds["bfloat16"] else "float32"


def _time_product(dtype: torch.dtype) -> float:
    rows, inner, columns = PROBE
    left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, columns, dtype=dtype)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - started)
    return min(times)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Return roughly the nearest semi-orthogonal matrix [rows, columns], using Newton-Schulz iteration."""
    a, b, c = _QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    # Without bfloat16 instructions, bfloat16 is fifty times slower on a CPU, and the iteration does not need it.
    x = (x / (x.norm() + 1e-7)).to(torch.bfloat16 if matrix.is_cuda else torch.float32)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    result: Tensor = (x.T if tall else x).to(matrix.dtype)
    return result


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks").

    The learning rate is roughly the spectral norm of an update. For hidden matrices only; use AdamW for embeddings,
    norms and heads.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group["lr"], group["momentum"])

    def _update(self, weight: nn.Parameter, lr: float, momentum: float) -> None:
        assert weight.grad is not None
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        average = state["momentum"]
        average.lerp_(weight.grad, 1 - momentum)
        update = orthogonalise(weight.grad.lerp(average, momentum))
        rows, columns = weight.shape
        weight.add_(update, alpha=-lr * max(1.0, rows / columns) ** 0.5)
