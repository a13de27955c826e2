"""The training loop of one model: batches in, checkpoints out. Knows the order of things, not their insides.

A run's whole state (weights, optimizers, step, rows seen, working seconds) is in its checkpoint, and
rows depend on their index alone, so with a budget in steps a resumed run repeats the undisturbed one bit for
bit on the same machine.
"""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from codespec.errors import TrainingError
from codespec.training.checkpoint import load_checkpoint, save_checkpoint
from codespec.training.corpus import Document
from codespec.training.evaluate import bits_per_byte
from codespec.training.export import load_weights
from codespec.training.lessons import Lesson
from codespec.training.llama import LlamaShape, TinyLlama
from codespec.training.muon import Muon
from codespec.training.progress import Bar
from codespec.training.samples import SampleStream
from codespec.training.schedule import Budget, counted_seconds, learning_rate_factor


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train a model. A step has `tokens_per_step` tokens in rows of `length`, later `long_length`."""

    name: str
    shape: LlamaShape
    budget: Budget
    seed: int = 0
    tokens_per_step: int = 4096
    length: int = 512
    long_length: int = 1024
    long_from: float = 0.85
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    warmup_steps: int = 60
    checkpoint_seconds: float = 240.0
    device: str = "cpu"
    dtype: str = "bfloat16"  # of the arithmetic; the weights are float32


@dataclass(slots=True)
class Position:
    """Where a run stands; `lessons` are the texts of a target that it learns from besides the corpus, `start` is the
    folder whose weights it began with.
    """

    step: int = 0
    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    lessons: int = 0
    start: str = ""
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """One model in training."""

    recipe: Recipe
    model: TinyLlama
    matrices: Muon
    others: torch.optim.AdamW
    position: Position
    tokenizer: str = ""  # a digest of what spells its rows

    @property
    def progress(self) -> float:
        """Share of the budget used."""
        return self.recipe.budget.progress(self.position.seconds, self.position.step)

    def state(self) -> dict[str, Any]:
        """All that a resume needs, as tensors and plain values."""
        at = self.position
        return {
            "shape": self.recipe.shape.to_dict(),
            "model": self.model.state_dict(),
            "matrices": self.matrices.state_dict(),
            "others": self.others.state_dict(),
            "random": torch.get_rng_state(),
            "tokenizer": self.tokenizer,
            "position": asdict(at),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a state made by `state`. TrainingError if its rows were spelled by another tokenizer."""
        if state["tokenizer"] != self.tokenizer:
            raise TrainingError(
                "The checkpoint belongs to another tokenizer: give the same --start as before, or begin without "
                "--resume."
            )
        self.model.load_state_dict(state["model"])
        self.matrices.load_state_dict(state["matrices"])
        self.others.load_state_dict(state["others"])
        torch.set_rng_state(state["random"])
        self.position = Position(**state["position"])


def start_run(recipe: Recipe, tokenizer: Tokenizer, checkpoint: Path | None = None, start: Path | None = None) -> Run:
    """A fresh run, from the weights of the folder `start` if there is one, or the run that `checkpoint` holds.
    TrainingError if that is missing or corrupted, or belongs to another tokenizer.
    """
    model = TinyLlama(recipe.shape, seed=recipe.seed).to(recipe.device)
    if start is not None and checkpoint is None:
        load_weights(model, start)
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    others = torch.optim.AdamW(rest, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0)
    digest = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    run = Run(recipe, model, Muon(hidden, lr=recipe.matrix_rate), others, Position(), digest)
    if checkpoint is not None:
        run.restore(load_checkpoint(checkpoint))
    elif start is not None:
        run.position.start = "/".join(start.parts[-2:])
    return run


def train_step(run: Run, stream: SampleStream) -> float:
    """One update; returns the loss in nats per token."""
    recipe, at, progress = run.recipe, run.position, run.progress
    length = recipe.long_length if progress >= recipe.long_from else recipe.length
    rows = max(1, recipe.tokens_per_step // length)
    ids, labels = (part.to(recipe.device) for part in stream.batch(at.rows, rows, length))
    factor = learning_rate_factor(at.step, progress, warmup_steps=recipe.warmup_steps)
    for optimizer, rate in ((run.matrices, recipe.matrix_rate), (run.others, recipe.other_rate)):
        optimizer.param_groups[0]["lr"] = rate * factor
    with torch.autocast(torch.device(recipe.device).type, torch.bfloat16, enabled=recipe.dtype == "bfloat16"):
        loss = run.model.loss(ids, labels)
    loss.backward()
    for optimizer in (run.matrices, run.others):
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    at.step, at.rows, at.tokens = at.step + 1, at.rows + rows, at.tokens + ids.numel()
    return float(loss.detach())


@dataclass(slots=True)
class Interruption:
    """Set by SIGTERM or SIGINT: the loop ends after the step under way."""

    wanted: bool = False


@contextmanager
def catching_signals() -> Iterator[Interruption]:
    """Turn SIGTERM and SIGINT into a wish to stop, for as long as the block runs."""
    interruption = Interruption()

    def note(*_: object) -> None:
        interruption.wanted = True

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pretrain(
    recipe: Recipe,
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    checkpoint: Path,
    *,
    resume: bool = False,
    start: Path | None = None,
    until: float = 1.0,
    held_out: Sequence[str] = (),
    lessons: Sequence[Lesson] = (),
    on_checkpoint: Callable[[Run], None] | None = None,
) -> tuple[Run, bool]:
    """Train until `until` of the budget is used; returns the run, and whether it got there before a signal.

    Writes `checkpoint` now and then, at the end, and on SIGTERM or SIGINT.
    """
    run = start_run(recipe, tokenizer, checkpoint if resume else None, start)
    stream = SampleStream(documents, tokenizer, seed=recipe.seed, lessons=lessons)
    run.position.lessons = len(lessons) or run.position.lessons
    bar = Bar(recipe.name)
    saved = run.position.seconds
    with catching_signals() as interruption:
        while run.progress < until and not interruption.wanted:
            _timed_step(run, stream, bar)
            if run.position.seconds - saved >= recipe.checkpoint_seconds:
                saved = run.position.seconds
                _keep(run, tokenizer, checkpoint, held_out, bar, on_checkpoint)
        _keep(run, tokenizer, checkpoint, held_out if run.progress >= until else (), bar, on_checkpoint)
    return run, run.progress >= until


def _timed_step(run: Run, stream: SampleStream, bar: Bar) -> None:
    at, before = run.position, run.position.tokens
    started = time.monotonic()
    loss = train_step(run, stream)
    seconds = counted_seconds(time.monotonic() - started)
    at.seconds += seconds
    bar.update(
        step=at.step,
        progress=run.progress,
        loss=loss,
        tokens=at.tokens - before,
        seconds=seconds,
        used=at.seconds,
    )


def _keep(
    run: Run,
    tokenizer: Tokenizer,
    checkpoint: Path,
    held_out: Sequence[str],
    bar: Bar,
    on_checkpoint: Callable[[Run], None] | None,
) -> None:
    at = run.position
    if held_out:
        bits = bits_per_byte(run.model, tokenizer, held_out)
        at.history.append({"step": at.step, "tokens": at.tokens, "seconds": at.seconds, "bits_per_byte": bits})
        bar.note(f"step {at.step}, {at.tokens / 1e6:.1f} M tokens: {bits:.3f} bits per byte on held-out code")
    save_checkpoint(checkpoint, run.state())
    if on_checkpoint is not None:
        on_checkpoint(run)
