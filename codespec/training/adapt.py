"""The loop that teaches a causal model to fill in the middle: rows in, an adapter and checkpoints out.

A run's state (matrices, vectors, optimizer, step, working seconds) is in its checkpoint, and rows depend on their index
alone, so a resumed run sees the same data. Knows the order of things, not their insides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from codespec.errors import TrainingError
from codespec.training.adapt_samples import AdaptStream
from codespec.training.adapting import Adapting
from codespec.training.checkpoint import load_checkpoint, save_checkpoint
from codespec.training.pretrain import catching_signals
from codespec.training.progress import Bar
from codespec.training.schedule import Budget, learning_rate_factor

HELD_ROWS = 48
LONGEST_STEP_SECONDS = 120.0  # a step that took longer was paused


@dataclass(frozen=True, slots=True)
class AdaptRecipe:
    """How to teach: a step has `rows` rows of `length` tokens; `rate` is for the matrices, the vectors take more."""

    budget: Budget
    rate: float = 1.5e-3
    row_factor: float = 3.0
    rows: int = 6
    length: int = 256
    warmup_steps: int = 15
    clip: float = 1.0
    checkpoint_seconds: float = 300.0


@dataclass(slots=True)
class AdaptPosition:
    """Where a run stands; `history` are its scores on held-out code."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class AdaptRun:
    """One model being taught."""

    def __init__(self, model: Adapting, recipe: AdaptRecipe) -> None:
        self.model, self.recipe, self.position = model, recipe, AdaptPosition()
        groups = [{"params": model.matrices}, {"params": [model.rows]}]
        self._optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0)

    @property
    def progress(self) -> float:
        """Share of the budget used."""
        return self.recipe.budget.progress(self.position.seconds, self.position.step)

    def step(self, stream: AdaptStream) -> float:
        """One update; returns the loss in nats."""
        recipe, at = self.recipe, self.position
        rows = stream.batch(at.step * recipe.rows, recipe.rows, recipe.length)
        factor = learning_rate_factor(at.step, self.progress, warmup_steps=recipe.warmup_steps)
        for group, times in zip(self._optimizer.param_groups, (1.0, recipe.row_factor), strict=True):
            group["lr"] = recipe.rate * factor * times
        loss = self.model.judge(rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*self.model.matrices, self.model.rows], recipe.clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.model.refresh()
        at.step, at.tokens = at.step + 1, at.tokens + rows.ids.numel()
        return float(loss.detach())

    @torch.no_grad()
    def score(self, stream: AdaptStream) -> dict[str, float]:
        """Nats per token of the middles of HELD_ROWS held-out rows, and of the tokens that end them."""
        nats: dict[bool, list[float]] = {False: [], True: []}
        for first in range(0, HELD_ROWS, self.recipe.rows):
            judged = self.model.judge(stream.batch(first, self.recipe.rows, self.recipe.length))
            for value, label in zip(judged.nats.tolist(), judged.labels.tolist(), strict=True):
                nats[label == self.model.sentinels.end].append(value)
        means = {ends: sum(found) / max(1, len(found)) for ends, found in nats.items()}
        return {"middle": means[False], "end": means[True]}

    def state(self) -> dict[str, Any]:
        """All that a resume needs."""
        return {
            "identity": self.model.identity,
            "model": self.model.state(),
            "optimizer": self._optimizer.state_dict(),
            "position": asdict(self.position),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes up what `state` gave. TrainingError where that was another model, rank or choice of sentinels."""
        if state["identity"] != self.model.identity:
            raise TrainingError(
                "The checkpoint belongs to another model, rank or choice of sentinels: give the same ones, or another "
                "--out."
            )
        self.model.restore(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.position = AdaptPosition(**state["position"])


def adapt(
    run: AdaptRun,
    stream: AdaptStream,
    held_out: AdaptStream | None,
    checkpoint: Path,
    *,
    resume: bool = False,
    on_checkpoint: Callable[[AdaptRun], None] = lambda run: None,
) -> bool:
    """Teaches until the budget is used; says whether it got there before a signal. Writes `checkpoint` now and then, at
    the end, and on SIGTERM or SIGINT.
    """
    if resume:
        run.restore(load_checkpoint(checkpoint))
    bar, at = Bar("adapt"), run.position
    saved = at.seconds
    with catching_signals() as interruption:
        while run.progress < 1.0 and not interruption.wanted:
            _timed_step(run, stream, bar)
            if at.seconds - saved >= run.recipe.checkpoint_seconds:
                saved = at.seconds
                _keep(run, None, checkpoint, bar, on_checkpoint)
        _keep(run, held_out if run.progress >= 1.0 else None, checkpoint, bar, on_checkpoint)
    return run.progress >= 1.0


def _timed_step(run: AdaptRun, stream: AdaptStream, bar: Bar) -> None:
    at, before = run.position, run.position.tokens
    started = time.monotonic()
    loss = run.step(stream)
    seconds = min(time.monotonic() - started, LONGEST_STEP_SECONDS)
    at.seconds += seconds
    tokens = at.tokens - before
    bar.update(step=at.step, progress=run.progress, loss=loss, tokens=tokens, seconds=seconds, used=at.seconds)


def _keep(
    run: AdaptRun,
    held_out: AdaptStream | None,
    checkpoint: Path,
    bar: Bar,
    on_checkpoint: Callable[[AdaptRun], None],
) -> None:
    at = run.position
    if held_out is not None:
        found = run.score(held_out)
        at.history.append({"step": at.step, "tokens": at.tokens, "seconds": at.seconds, **found})
        bar.note(
            f"step {at.step}, {at.tokens / 1e6:.2f} M tokens: {found['middle']:.3f} nats a token of a held-out "
            f"middle, {found['end']:.3f} for its end"
        )
    save_checkpoint(checkpoint, run.state())
    on_checkpoint(run)
