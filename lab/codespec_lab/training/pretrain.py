"""Train a small Llama from scratch or from the weights of another model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from codespec.errors import TrainingError
from codespec_lab.corpus.documents import Document
from codespec_lab.training.distill.texts import DistillationExample
from codespec_lab.training.export import load_weights, take_layers
from codespec_lab.training.llama import LlamaShape, TinyLlama
from codespec_lab.training.run import Budget, Muon, RunState, learning_rate_factor, load_checkpoint, train
from codespec_lab.training.samples import FimTokenizer, SampleStream

EXCERPT_CHARS = 1500


@dataclass(frozen=True, slots=True)
class Recipe:
    """Training settings. A step has `tokens_per_step` tokens in rows of `length`, later `long_length`."""

    name: str
    shape: LlamaShape
    budget: Budget
    seed: int = 0
    tokens_per_step: int = 4096
    length: int = 512
    long_length: int = 1024
    long_from: float = 0.85  # share of the budget
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    warmup_steps: int = 60
    checkpoint_seconds: float = 240.0
    device: str = "cpu"
    dtype: str = "bfloat16"  # of the computation; the weights are float32


@dataclass(slots=True)
class PretrainState(RunState):
    """Progress, with the rows read, the number of distilled texts, and the folder of the initial weights."""

    rows: int = 0
    distilled: int = 0
    start: str = ""


@dataclass(slots=True)
class PretrainRun:
    """A model in training, with one optimizer for its hidden matrices and one for all other weights."""

    recipe: Recipe
    model: TinyLlama
    matrices: Muon
    others: torch.optim.AdamW
    state: PretrainState
    tokenizer_digest: str = ""

    @property
    def progress(self) -> float:
        """Share of the budget that is used."""
        return self.recipe.budget.progress(self.state.seconds, self.state.step)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume, as tensors and plain values."""
        return {
            "shape": self.recipe.shape.to_dict(),
            "model": self.model.state_dict(),
            "matrices": self.matrices.state_dict(),
            "others": self.others.state_dict(),
            "random": torch.get_rng_state(),
            "tokenizer": self.tokenizer_digest,
            "position": asdict(self.state),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the result of `state_dict`. Raise TrainingError if it belongs to another tokenizer."""
        if saved["tokenizer"] != self.tokenizer_digest:
            raise TrainingError(
                "The checkpoint belongs to another tokenizer: give the same --start as before, or begin without "
                "--resume."
            )
        self.model.load_state_dict(saved["model"])
        self.matrices.load_state_dict(saved["matrices"])
        self.others.load_state_dict(saved["others"])
        torch.set_rng_state(saved["random"])
        self.state = PretrainState(**saved["position"])

    def step(self, stream: SampleStream) -> float:
        """Make one update and return the loss in nats per token."""
        recipe, state, progress = self.recipe, self.state, self.progress
        length = recipe.long_length if progress >= recipe.long_from else recipe.length
        rows = max(1, recipe.tokens_per_step // length)
        ids, labels = (part.to(recipe.device) for part in stream.batch(state.rows, rows, length))
        factor = learning_rate_factor(state.step, progress, warmup_steps=recipe.warmup_steps)
        for optimizer, rate in ((self.matrices, recipe.matrix_rate), (self.others, recipe.other_rate)):
            optimizer.param_groups[0]["lr"] = rate * factor
        with torch.autocast(torch.device(recipe.device).type, torch.bfloat16, enabled=recipe.dtype == "bfloat16"):
            loss = self.model.loss(ids, labels)
        loss.backward()
        for optimizer in (self.matrices, self.others):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state.step, state.rows, state.tokens = state.step + 1, state.rows + rows, state.tokens + ids.numel()
        return float(loss.detach())


def start_run(
    recipe: Recipe,
    tokenizer: Tokenizer,
    checkpoint: Path | None = None,
    start: Path | None = None,
    layers: Path | None = None,
) -> PretrainRun:
    """Resume the run in `checkpoint`, or start a new one.

    A new run takes the weights of the folder `start` or the layers of the folder `layers`, if given. Raise
    TrainingError if the checkpoint is missing, corrupted, or belongs to another tokenizer.
    """
    model = TinyLlama(recipe.shape, seed=recipe.seed).to(recipe.device)
    if start is not None and checkpoint is None:
        load_weights(model, start)
    if layers is not None and checkpoint is None:
        take_layers(model, tokenizer, layers)
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    others = torch.optim.AdamW(rest, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0)
    digest = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    run = PretrainRun(recipe, model, Muon(hidden, lr=recipe.matrix_rate), others, PretrainState(), digest)
    if checkpoint is not None:
        run.load_state_dict(load_checkpoint(checkpoint))
    elif start is not None or layers is not None:
        run.state.start = "/".join((start or layers or Path()).parts[-2:])
    return run


def pretrain(
    recipe: Recipe,
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    checkpoint: Path,
    *,
    resume: bool = False,
    start: Path | None = None,
    layers: Path | None = None,
    held_out: Sequence[str] = (),
    distilled: Sequence[DistillationExample] = (),
    on_checkpoint: Callable[[PretrainRun], None] | None = None,
) -> tuple[PretrainRun, bool]:
    """Train until the budget is used; return the run, and False if a signal stopped it."""
    run = start_run(recipe, tokenizer, checkpoint if resume else None, start, layers)
    stream = SampleStream(documents, tokenizer, seed=recipe.seed, distilled=distilled)
    run.state.distilled = len(distilled) or run.state.distilled
    finished = train(
        recipe.name,
        run,
        lambda: run.step(stream),
        checkpoint,
        checkpoint_seconds=recipe.checkpoint_seconds,
        score=(lambda: {"bits_per_byte": bits_per_byte(run.model, tokenizer, held_out, recipe.dtype)})
        if held_out
        else None,
        score_at_checkpoints=True,
        on_checkpoint=on_checkpoint,
    )
    return run, finished


def held_out_excerpts(files: Sequence[tuple[str, Path]], count: int) -> list[str]:
    """Return `count` excerpts of about 1,500 characters: the middles of evenly spaced files, from a line start."""
    excerpts = []
    texts = [path.read_text(encoding="utf-8") for _, path in files]
    long = [text for text in texts if len(text) >= 2 * EXCERPT_CHARS]
    for index in range(min(count, len(long))):
        text = long[index * len(long) // min(count, len(long))]
        start = text.find("\n", (len(text) - EXCERPT_CHARS) // 2) + 1
        excerpts.append(text[start : start + EXCERPT_CHARS])
    return excerpts


@torch.no_grad()
def bits_per_byte(model: TinyLlama, tokenizer: Tokenizer, excerpts: Sequence[str], dtype: str = "float32") -> float:
    """Return bits per byte over all excerpts.

    Each excerpt is read separately, and its first token is not predicted. `dtype` is that of the computation.
    """
    fim_tokenizer = FimTokenizer(tokenizer)
    device = next(model.parameters()).device
    nats, size = 0.0, 0
    for text in excerpts:
        ids = torch.tensor([fim_tokenizer.encode(text)[: model.shape.max_positions]], device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            nats += float(model.loss(ids[:, :-1], ids[:, 1:])) * (ids.shape[1] - 1)
        size += len(text.encode())
    return nats / math.log(2) / size
