"""One training run of a head: weights, optimizers, progress, and scores on held-out lessons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from codespec.errors import TrainingError
from codespec.models.heads.config import HeadConfig
from codespec.models.heads.host import Host
from codespec.models.heads.networks import DFlash, Eagle3, HeadRotary
from codespec_lab.training.heads.features import FeatureStore, Lesson
from codespec_lab.training.heads.losses import (
    ANCHORS,
    Guess,
    Vocabulary,
    accepted_runs,
    dflash_guesses,
    eagle3_guesses,
    guess_loss,
)
from codespec_lab.training.run import Budget, Muon, RunState, learning_rate_factor, load_checkpoint, train

Head = Eagle3 | DFlash
HELD_OUT_SHARE, MOST_HELD_OUT = 0.05, 48
TEMPER = 0.3  # scale of the last norm: 20 steps from it equal 40 from the target's own scale
LONGEST_STEP_SECONDS = 60.0  # a longer step was paused


@dataclass(frozen=True, slots=True)
class HeadRecipe:
    """Training settings: `lessons` texts per step; an EAGLE-3 head is unrolled over `unroll` draft steps."""

    budget: Budget
    seed: int = 0
    lessons: int = 3
    unroll: int = 4
    anchors: int = ANCHORS
    matrix_rate: float = 0.02
    other_rate: float = 1e-3
    warmup_steps: int = 30
    clip: float = 1.0
    checkpoint_seconds: float = 240.0
    dtype: str = "bfloat16"  # of the computation; the weights are float32


def choose_vocabulary(store: FeatureStore, host: Host, size: int, device: torch.device) -> Vocabulary:
    """Return the `size` tokens most frequent in the store (texts and top choices), ordered by id."""
    counts = store.count_tokens(host.vocab_size)
    size = min(size, host.vocab_size)
    ids = counts.argsort(descending=True, stable=True)[:size].sort().values
    return make_vocabulary(ids, host, device)


def make_vocabulary(ids: Tensor, host: Host, device: torch.device) -> Vocabulary:
    """Return the draft vocabulary of `ids` with the target's output rows."""
    places = torch.full((host.vocab_size,), -1, dtype=torch.long)
    places[ids] = torch.arange(len(ids))
    rows = host.output_rows(ids).to(device)
    return Vocabulary(ids.to(device), rows, places.to(device))


class HeadRun:
    """One head trained on the lessons of a store; the last few are held out."""

    def __init__(self, config: HeadConfig, recipe: HeadRecipe, host: Host, vocabulary: Vocabulary, store: FeatureStore):
        self.config, self.recipe, self.state = config, recipe, RunState()
        self.store, self.host, self.vocabulary = store, host, vocabulary
        self.device = vocabulary.ids.device
        kind = Eagle3 if config.kind == "eagle3" else DFlash
        self.head: Head = kind(config, seed=recipe.seed)
        self.head.lm_head = nn.Identity()  # the target's output head is not trained
        self.head.to(self.device)
        self._begin()
        self.rotation = HeadRotary(config, self.device)
        matrices = [p for p in self.head.parameters() if p.ndim == 2]
        others = [p for p in self.head.parameters() if p.ndim != 2]
        self._matrices = Muon(matrices, lr=recipe.matrix_rate)
        self._others = torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self._compute = torch.bfloat16 if recipe.dtype == "bfloat16" else torch.float32
        self.held_out = min(MOST_HELD_OUT, int(HELD_OUT_SHARE * len(store)))
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    @property
    def progress(self) -> float:
        """Share of the budget that is used."""
        return self.recipe.budget.progress(self.state.seconds, self.state.step)

    def step(self) -> float:
        """Make one update and return the loss in nats."""
        recipe, state = self.recipe, self.state
        factor = learning_rate_factor(state.step, self.progress, warmup_steps=recipe.warmup_steps)
        for optimizer, rate in ((self._matrices, recipe.matrix_rate), (self._others, recipe.other_rate)):
            optimizer.param_groups[0]["lr"] = rate * factor
        nats = weight = 0.0
        first = state.step * recipe.lessons
        for index in range(first, first + recipe.lessons):
            lesson = self._lesson(self._choose(index))
            with self._arithmetic():
                found = [guess_loss(guess, lesson, self.vocabulary) for guess in self.guesses(lesson, index)]
            if not found:
                continue
            total = torch.stack([loss for loss, _ in found]).sum()
            total.backward()
            nats, weight = nats + float(total.detach()), weight + sum(part for _, part in found)
            state.tokens += len(lesson.ids)
        self._update(max(weight, 1e-6))
        state.step += 1
        return nats / max(weight, 1e-6)

    def _update(self, weight: float) -> None:
        parameters = list(self.head.parameters())
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(weight)
        nn.utils.clip_grad_norm_(parameters, self.recipe.clip)
        for optimizer in (self._matrices, self._others):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def guesses(self, lesson: Lesson, index: int) -> Iterator[Guess]:
        """Yield the head's guesses for a lesson; the anchors of a DFlash head depend on the seed and `index`."""
        if isinstance(self.head, Eagle3):
            return eagle3_guesses(self.head, self.rotation, self._embed, lesson, self.recipe.unroll)
        generator = torch.Generator().manual_seed(1_000_003 * self.recipe.seed + index)
        return dflash_guesses(self.head, self.rotation, self._embed, lesson, self.recipe.anchors, generator)

    @torch.no_grad()
    def score(self) -> dict[str, float]:
        """Return correct tokens per draft and nats, on the held-out lessons."""
        taken = drafts = 0
        nats = weight = 0.0
        for number in range(len(self.store) - self.held_out, len(self.store)):
            lesson = self._lesson(number)
            with self._arithmetic():
                guesses = list(self.guesses(lesson, number))
                losses = [guess_loss(guess, lesson, self.vocabulary) for guess in guesses]
            right, begun = accepted_runs(guesses, lesson, self.vocabulary)
            taken, drafts = taken + right, drafts + begun
            nats, weight = nats + sum(float(loss) for loss, _ in losses), weight + sum(part for _, part in losses)
        return {"right_a_draft": taken / max(1, drafts), "nats": nats / max(weight, 1e-6)}

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume, as tensors and plain values."""
        return {
            "identity": self._identity(),
            "head": self.head.state_dict(),
            "ids": self.vocabulary.ids.cpu(),
            "matrices": self._matrices.state_dict(),
            "others": self._others.state_dict(),
            "position": asdict(self.state),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the result of `state_dict`. Raise TrainingError if it belongs to another head or target."""
        if saved["identity"] != self._identity():
            raise TrainingError(
                "The checkpoint belongs to another target or another kind of head: give the same flags as before, or "
                "another --out."
            )
        self.vocabulary = make_vocabulary(saved["ids"], self.host, self.device)
        self.head.load_state_dict(saved["head"])
        self._matrices.load_state_dict(saved["matrices"])
        self._others.load_state_dict(saved["others"])
        self.state = RunState(**saved["position"])

    def _identity(self) -> str:
        return repr(replace(self.config, target={"sha256": self.config.target["sha256"]}))

    @torch.no_grad()
    def _begin(self) -> None:
        """Initialize from the target: its last norm, scaled by TEMPER, and the mean token vector as DFlash mask.

        At the target's own scale an untrained head is overconfident.
        """
        if self.host.norm is not None:
            self.head.norm.weight.copy_(TEMPER * self.host.norm)
        if isinstance(self.head, DFlash):
            every = torch.arange(min(1024, self.host.vocab_size), device=self.device)
            self.head.mask.copy_(self.host.embed(every).float().mean(0))

    def _embed(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.host.embed(ids).detach().to(self._compute)
        return vectors

    def _lesson(self, number: int) -> Lesson:
        found = self.store.lesson(number)
        ids, likely, probabilities = (part.to(self.device) for part in (found.ids, found.likely, found.probabilities))
        return Lesson(ids, found.features.to(self.device, self._compute), likely, probabilities, found.begin)

    def _choose(self, index: int) -> int:
        """Return the `index`-th lesson to train on: each once per epoch, shuffled by the seed."""
        count = len(self.store) - self.held_out
        epoch, place = divmod(index, count)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.recipe.seed, epoch]).permutation(count)
        return int(self._order[place])

    def _arithmetic(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._compute == torch.bfloat16)


def train_head(
    run: HeadRun, checkpoint: Path, *, resume: bool = False, on_checkpoint: Callable[[HeadRun], None] | None = None
) -> bool:
    """Train until the budget is used; return False if a signal stopped it."""
    if resume:
        run.load_state_dict(load_checkpoint(checkpoint))
    return train(
        "head",
        run,
        run.step,
        checkpoint,
        checkpoint_seconds=run.recipe.checkpoint_seconds,
        longest_step=LONGEST_STEP_SECONDS,
        score=run.score if run.held_out else None,
        score_at_checkpoints=True,
        on_checkpoint=on_checkpoint,
    )


def head_shape(kind: str, host: Host, layers: Sequence[int], *, draft_vocab: int, block: int, deep: int) -> HeadConfig:
    """Return the config of a small head: as wide as the target, heads of 64, an MLP of 8/3 the width."""
    size = host.size
    heads = max(1, size // 64)
    return HeadConfig(
        kind="eagle3" if kind == "eagle3" else "dflash",
        hidden_size=size,
        target_size=size,
        layers=tuple(layers),
        heads=heads,
        kv_heads=next(count for count in (3, 2, 4, 1) if heads % count == 0),
        head_size=size // heads,
        mlp_size=-(-size * 8 // 3 // 64) * 64,
        vocab_size=host.vocab_size,
        draft_vocab=min(draft_vocab, host.vocab_size),
        draft_layers=1 if kind == "eagle3" else deep,
        block=block,
        rope={"rope_type": "default", "rope_theta": 100000.0},
        max_positions=8192,
        target=dict(host.fingerprint),
    )
