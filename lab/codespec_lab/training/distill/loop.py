"""Training loop of a drafter: losses, steps, evaluations, the best weights so far, and checkpoints.

Both losses are in DistillSpec (Zhou et al. 2023): cross-entropy of the target's text in the drafter's tokens, and
forward KL divergence from the target's distributions at common token boundaries.

Everything depends only on the seed and the step number, and a checkpoint holds the whole state: a killed and resumed
run ends with the same bytes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from codespec_lab.progress import StageBar
from codespec_lab.training.distill.lessons import Lesson, LessonBatch, LessonOrder, batch
from codespec_lab.training.distill.student import Student
from codespec_lab.training.run import learning_rate_factor, load_checkpoint, save_checkpoint

TOKENS = 4096  # per step
LOGITS = 32_000_000  # maximum per step; large vocabularies get fewer tokens
WARM_UP = 20
CLIP = 1.0
EVALUATIONS, PATIENCE = 24, 8
MIN_KEPT = 0.98  # minimum share of the acceptance elsewhere to keep
CHECKPOINT_SECONDS = 30.0
PROBES = 3
SMOOTHING = 0.95


def text_nats(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the nats of each label [N] from its logits [N, vocabulary]."""
    return cross_entropy(logits.float(), labels, reduction="none")


def forward_kl(logits: Tensor, ids: Tensor, probabilities: Tensor) -> Tensor:
    """Return KL(target ‖ drafter) in nats for each row [N].

    `probabilities` [N, k] are the target's for the drafter's tokens `ids` [N, k]; `logits` [N, vocabulary] are the
    drafter's.
    """
    wanted = probabilities.float()
    wanted = wanted / wanted.sum(dim=1, keepdim=True).clamp(min=1e-9)
    found = logits.float().log_softmax(dim=1).gather(1, ids.long())
    return (torch.xlogy(wanted, wanted) - wanted * found).sum(dim=1)


def total_loss(logits: Tensor, batch: LessonBatch) -> Tensor:
    """Return the weighted mean of both losses over a batch; logits [B × T, vocabulary]. A taught row has weight 1."""
    weights = batch.weights.to(logits.device)
    text = (text_nats(logits[batch.rows], batch.labels.to(logits.device)) * weights).sum()
    taught = forward_kl(logits[batch.taught], batch.ids.to(logits.device), batch.probabilities.to(logits.device)).sum()
    return (text + taught) / (weights.sum() + len(batch.taught)).clamp(min=1e-6)


@dataclass(frozen=True, slots=True)
class Score:
    """Estimated accepted tokens per round, on held-out files and elsewhere."""

    here: float
    elsewhere: float


@dataclass(slots=True)
class Position:
    """Progress of a training run.

    `stale` counts evaluations since the best one; `best_step` is 0 while no weights beat the initial ones.
    """

    step: int = 0
    best_step: int = 0
    stale: int = 0
    loss: float = 0.0
    first_here: float = 0.0
    first_elsewhere: float = 0.0
    best_here: float = 0.0
    best_elsewhere: float = 0.0


class Training:
    """A student with its optimizer and the best weights so far; `judge` estimates its acceptance."""

    def __init__(self, student: Student, rate: float, seed: int, judge: Callable[[], Score]) -> None:
        self.student, self.rate, self.seed, self._judge = student, rate, seed, judge
        values = list(student.trained.values())
        self._optimizer = torch.optim.AdamW(values, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
        self.position = Position()
        self.best: dict[str, Tensor] = {}
        self._lessons: Sequence[Lesson] = ()
        self._order = LessonOrder([1], 1, seed)

    @property
    def over(self) -> bool:
        """Whether acceptance has not risen for PATIENCE evaluations."""
        return self.position.stale >= PATIENCE

    def open(self, checkpoint: Path) -> None:
        """Resume from a checkpoint, or evaluate the initial student if there is none."""
        if checkpoint.exists():
            saved = load_checkpoint(checkpoint)
            self.student.load_state_dict(saved["student"])
            self._optimizer.load_state_dict(saved["optimizer"])
            self.best, self.position = saved["best"], Position(**saved["position"])
            return
        first = self._judge()
        self.position.first_here = self.position.best_here = first.here
        self.position.first_elsewhere = self.position.best_elsewhere = first.elsewhere
        self.best = self.student.state_dict()

    def learn_from(self, lessons: Sequence[Lesson], turn: int) -> None:
        """Take the next steps from these lessons, in an order determined by the seed and `turn`."""
        tokens = max(256, min(TOKENS, LOGITS // self.student.network.get_output_embeddings().weight.shape[0]))
        self._lessons = lessons
        self._order = LessonOrder([len(lesson.tokens) for lesson in lessons], tokens, self.seed + turn)

    def fitting_steps(self, seconds: float) -> int:
        """Return the number of steps, at least 1, that fit into `seconds`, evaluations included. Leaves the state
        unchanged.
        """
        started = time.monotonic()
        for number in range(PROBES):
            self._backward(number)
            self._optimizer.zero_grad(set_to_none=True)
        stepped = time.monotonic()
        self._judge()
        judged = time.monotonic() - stepped
        return max(1, int((seconds - EVALUATIONS * judged) * PROBES / (stepped - started)))

    def run(
        self, first: int, until: int, steps: int, checkpoint: Path, bar: StageBar, wanted: Callable[[], bool]
    ) -> bool:
        """Train up to step `until` of `steps`; the order of the lessons begins at step `first`.

        Return False if `wanted` returns True first; the state is then in the checkpoint.
        """
        position, every = self.position, max(1, math.ceil(steps / EVALUATIONS))
        started, begun, saved = time.monotonic(), position.step, time.monotonic()
        while position.step < until and not self.over:
            self._step(position.step - first, steps)
            if position.step % every == 0 or position.step == steps:
                self._evaluate()
            pace = (time.monotonic() - started) / (position.step - begun)
            bar.update(position.step / steps, self._details(pace * (steps - position.step)))
            if wanted():
                self.save(checkpoint)
                return False
            if time.monotonic() - saved >= CHECKPOINT_SECONDS:
                self.save(checkpoint)
                saved = time.monotonic()
        self.save(checkpoint)
        bar.update(position.step / steps, self._details(0.0), ended=position.step == steps or self.over)
        return True

    def save(self, checkpoint: Path) -> None:
        """Write the whole state. Raise TrainingError if the disk is full."""
        state: dict[str, Any] = {
            "student": self.student.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "best": self.best,
            "position": asdict(self.position),
        }
        save_checkpoint(checkpoint, state)

    def _backward(self, number: int) -> float:
        rows = batch([self._lessons[index] for index in self._order.batch(number)])
        loss = total_loss(self.student.logits(rows.tokens).flatten(0, 1), rows)
        loss.backward()
        return float(loss.detach())

    def _step(self, number: int, steps: int) -> None:
        position = self.position
        factor = learning_rate_factor(position.step, position.step / steps, warmup_steps=WARM_UP)
        self._optimizer.param_groups[0]["lr"] = self.rate * factor
        loss = self._backward(number)
        torch.nn.utils.clip_grad_norm_(list(self.student.trained.values()), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        position.loss = SMOOTHING * position.loss + (1 - SMOOTHING) * loss if position.loss else loss
        position.step += 1

    def _evaluate(self) -> None:
        score, position = self._judge(), self.position
        keeps = score.elsewhere >= MIN_KEPT * position.first_elsewhere
        if keeps and score.here > position.best_here:
            position.best_here, position.best_elsewhere = score.here, score.elsewhere
            position.best_step, position.stale = position.step, 0
            self.best = self.student.state_dict()
        else:
            position.stale += 1

    def _details(self, left: float) -> str:
        position = self.position
        accepted = f"accepted {position.best_here:.2f} a round (began with {position.first_here:.2f})"
        return f"step {position.step}  loss {position.loss:.3f}  {accepted}  {left / 60:.1f} min left"
