"""What a replay comes to: modelled seconds, drafted, accepted and rejected tokens, by prompt and by context class.

Knows steps and prices; knows no policy by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codespec.bench.bootstrap import Interval, ratio_interval
from codespec.bench.pricing import Prices
from codespec.bench.recording import Recording
from codespec.bench.tape import Round, Step


@dataclass(slots=True)
class Tally:
    """Sums of rounds. `missed` are tokens that the best draft at hand would have brought and this one did not."""

    seconds: float = 0.0
    rounds: int = 0
    committed: int = 0
    drafted: int = 0
    accepted: int = 0
    missed: int = 0

    @property
    def rejected(self) -> int:
        """Drafted for nothing."""
        return self.drafted - self.accepted

    def add(self, played: Round, seconds: float) -> None:
        """Adds a round."""
        self.seconds += seconds
        self.rounds += 1
        self.committed += played.committed
        self.drafted += played.drafted
        self.accepted += played.accepted
        guesses = played.recording.guesses.get(played.position, {})
        self.missed += max(0, *(max(guess.cuts) - played.accepted for guess in guesses.values()), 0)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "ms": 1000 * self.seconds,
            "rounds": self.rounds,
            "committed": self.committed,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "missed": self.missed,
        }


@dataclass(slots=True)
class Score:
    """One policy on all recordings. `by_context` counts a round in the class at the tip where it began; `token_seconds`
    shares a round's seconds among the tokens it wrote, by the class that each of them stands in, so that policies with
    different rounds can be compared class by class.
    """

    total: Tally = field(default_factory=Tally)
    by_prompt: list[Tally] = field(default_factory=list)
    by_context: dict[str, Tally] = field(default_factory=dict)
    token_seconds: dict[str, float] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)

    @property
    def ms_per_token(self) -> float:
        """Modelled milliseconds a committed token."""
        return 1000 * self.total.seconds / self.total.committed

    def column(self, value: Callable[[Tally], float]) -> list[float]:
        """A number of each prompt."""
        return [value(tally) for tally in self.by_prompt]


def score(steps: Sequence[Step], prices: Prices, recordings: Sequence[Recording]) -> Score:
    """Prices a replay; a step's seconds are shared equally among its rounds."""
    result = Score(by_prompt=[Tally() for _ in recordings])
    numbers = {recording.prompt_ids: number for number, recording in enumerate(recordings)}
    for step in steps:
        share = prices.step(step) / len(step.rounds)
        for played in step.rounds:
            context = class_at(played.recording, played.position)
            prompt = result.by_prompt[numbers[played.recording.prompt_ids]]
            for tally in (result.total, prompt, result.by_context.setdefault(context, Tally())):
                tally.add(played, share)
            result.lengths[played.drafted] += 1
            for offset in range(played.committed):
                written = class_at(played.recording, played.position + offset)
                seconds = result.token_seconds.get(written, 0.0)
                result.token_seconds[written] = seconds + share / played.committed
    return result


def class_at(recording: Recording, position: int) -> str:
    """The context class at a position; the last known one where nothing could be drafted any more."""
    return recording.contexts.get(position) or recording.contexts[max(p for p in recording.contexts if p <= position)]


def tokens_by_class(recordings: Sequence[Recording]) -> Mapping[str, int]:
    """How many tokens stand in each class."""
    return Counter(class_at(recording, place) for recording in recordings for place in range(len(recording.ids)))


def speed(score_: Score, other: Score) -> Interval | None:
    """How many times as fast as another policy, on the same texts."""
    return ratio_interval(other.column(_seconds), score_.column(_seconds))


def accepted(score_: Score, other: Score) -> Interval | None:
    """Accepted tokens against another policy's."""
    return ratio_interval(score_.column(_accepted), other.column(_accepted))


def rejected(score_: Score, other: Score) -> Interval | None:
    """Rejected tokens against another policy's."""
    return ratio_interval(score_.column(_rejected), other.column(_rejected))


def _seconds(tally: Tally) -> float:
    return tally.seconds


def _accepted(tally: Tally) -> float:
    return tally.accepted


def _rejected(tally: Tally) -> float:
    return tally.rejected
