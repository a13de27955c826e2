"""How far a run has come and which learning rate that means; knows clocks and step counts, no optimizer."""

from __future__ import annotations

from dataclasses import dataclass

# A step that took longer was paused or swapped out: the budget is the run's own working time.
LONGEST_STEP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Budget:
    """What ends a run: minutes of its own working time, or steps (then a resume repeats it bit for bit)."""

    minutes: float = 0.0
    steps: int = 0

    def progress(self, seconds: float, steps: int) -> float:
        """Share of the budget used, from 0 to 1."""
        done = steps / self.steps if self.steps else seconds / (60.0 * self.minutes)
        return min(1.0, done)


def counted_seconds(step_seconds: float) -> float:
    """The part of a step's wall time that counts as work."""
    return min(step_seconds, LONGEST_STEP_SECONDS)


def learning_rate_factor(step: int, progress: float, *, warmup_steps: int = 60, floor: float = 0.01) -> float:
    """Linear warm-up over steps, then a linear fall over the budget."""
    warm = min(1.0, (step + 1) / warmup_steps)
    return warm * max(floor, 1.0 - progress)
