"""Predict the acceptance probability of draft tokens from decayed counts by proposer, context and position.

A context with few observations falls back on the counts over all contexts. Without observations, acceptance is assumed
to be near even odds, because rates measured with one pair of models are wrong by large factors for another pair. The
proposer's confidence shifts the log-odds of acceptance by the observed difference between tokens of that confidence and
all tokens. Before any observations, the shift is half the log-odds of the confidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codespec.files import CORRUPT, Kept
from codespec.user_folders import make_state_folder, state_folder

POSITIONS = 16  # draft positions with separate counts; later positions share the last count
DECAY = 0.995  # of a counter per observation: a window of about 200
STRENGTH = 8.0  # weight of a prior, in observations
WEIGHT = 0.5  # of a confidence's log-odds, before observations
ANYWHERE = ""  # context key for the counts over all contexts
# Prior acceptance probabilities of a draft's first token, and of a later token if all tokens before it are accepted.
NEUTRAL = (0.5, 0.6)
PRIORS = {"prediction": (0.8, 0.95)}  # the client expects this text


@dataclass(slots=True)
class DecayedCounts:
    """Decayed counts of observed tokens (`seen`) and of accepted tokens (`right`), by position."""

    right: list[float] = field(default_factory=lambda: [0.0] * POSITIONS)
    seen: list[float] = field(default_factory=lambda: [0.0] * POSITIONS)

    def count(self, position: int, right: bool) -> None:
        """Add an observation and decay the older ones at the same position."""
        self.right[position] = DECAY * self.right[position] + right
        self.seen[position] = DECAY * self.seen[position] + 1.0

    def means(self, priors: Sequence[float]) -> list[float]:
        """Return the posterior mean of each position, under Beta priors with the weight of STRENGTH observations."""
        turns = zip(self.right, self.seen, priors, strict=True)
        return [(right + STRENGTH * prior) / (seen + STRENGTH) for right, seen, prior in turns]


class AcceptanceModel:
    """The acceptance counts of one pair of target and drafter. Draft positions are numbered from 0."""

    def __init__(self) -> None:
        self.counters: dict[tuple[str, str], DecayedCounts] = {}  # (source, context)
        self.by_confidence: dict[str, DecayedCounts] = {}  # by source; a position is a `level`
        self._odds: dict[tuple[str, str], tuple[float, ...]] = {}

    def rate(self, source: str, context: str, position: int) -> float:
        """Return the learned probability that a position is accepted if all earlier positions are accepted."""
        return sigmoid(self._odds_of(source, context)[min(position, POSITIONS - 1)])

    def survival(
        self, source: str, context: str, count: int, confidences: Sequence[float] | None = None
    ) -> list[float]:
        """Return, for each of the first `count` tokens, the probability that all tokens up to it are accepted.

        `confidences` is None before drafting. The last confidence also applies to later tokens.
        """
        odds, shifts = self._odds_of(source, context), [0.0]
        if confidences is not None:
            shifts = [self._shift(source, confidence) for confidence in confidences[:count]]
        probabilities, survival, last = [], 1.0, len(shifts) - 1
        for number in range(count):
            survival *= sigmoid(odds[min(number, POSITIONS - 1)] + shifts[min(number, last)])
            probabilities.append(survival)
        return probabilities

    def seen(self, source: str, context: str) -> float:
        """Return the decayed number of first tokens observed in this context."""
        counter = self.counters.get((source, context))
        return counter.seen[0] if counter else 0.0

    def learn(self, source: str, context: str, confidences: Sequence[float], accepted: int) -> None:
        """Learn from a draft whose first `accepted` tokens were accepted; `confidences` has an entry for each token."""
        keys = dict.fromkeys([(source, ANYWHERE), (source, context)])
        counters = [self.counters.setdefault(key, DecayedCounts()) for key in keys]
        levels = self.by_confidence.setdefault(source, DecayedCounts())
        for number, confidence in enumerate(confidences[: accepted + 1]):
            for counter in counters:
                counter.count(min(number, POSITIONS - 1), number < accepted)
            levels.count(level(confidence), number < accepted)
        self._odds = {key: cached for key, cached in self._odds.items() if key[0] != source}

    def as_dict(self) -> dict[str, Any]:
        """Return the model as plain JSON values."""
        counters = [[*key, counter.right, counter.seen] for key, counter in sorted(self.counters.items())]
        levels = [[source, counter.right, counter.seen] for source, counter in sorted(self.by_confidence.items())]
        return {"counters": counters, "by_confidence": levels}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AcceptanceModel:
        """Parse the output of `as_dict`. Raises ValueError, TypeError or KeyError for invalid values."""
        model = cls()
        for source, context, right, seen in values["counters"]:
            model.counters[str(source), str(context)] = _counts(right, seen)
        for source, right, seen in values.get("by_confidence", []):  # missing in files of earlier versions
            model.by_confidence[str(source)] = _counts(right, seen)
        return model

    def _odds_of(self, source: str, context: str) -> tuple[float, ...]:
        """Return the learned log-odds of each position, which are cached until the source's next verdict."""
        if (source, context) not in self._odds:
            first, later = PRIORS.get(source, NEUTRAL)
            rates = self._means((source, ANYWHERE), [first] + [later] * (POSITIONS - 1))
            if context != ANYWHERE:
                rates = self._means((source, context), rates)
            self._odds[source, context] = tuple(map(logit, rates))
        return self._odds[source, context]

    def _shift(self, source: str, confidence: float) -> float:
        """Return the log-odds of acceptance for this confidence minus the log-odds for all tokens."""
        counter = self.by_confidence.get(source) or DecayedCounts()
        right, seen = sum(counter.right), sum(counter.seen)
        overall = logit((right + STRENGTH / 2) / (seen + STRENGTH))
        prior, number = sigmoid(overall + WEIGHT * logit(confidence)), level(confidence)
        return logit((counter.right[number] + STRENGTH * prior) / (counter.seen[number] + STRENGTH)) - overall

    def _means(self, key: tuple[str, str], priors: list[float]) -> list[float]:
        counter = self.counters.get(key)
        return counter.means(priors) if counter else priors


def level(confidence: float) -> int:
    """Return the rounded log-odds of a confidence, shifted to be nonnegative."""
    return round(logit(confidence)) + POSITIONS // 2


def logit(chance: float) -> float:
    """Return the log-odds of a probability, which is first clamped to between 0.001 and 0.999."""
    kept = min(0.999, max(0.001, chance))
    return math.log(kept / (1.0 - kept))


def sigmoid(log_odds: float) -> float:
    """Return the probability with the given log-odds."""
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, log_odds))))


def _counts(right: Any, seen: Any) -> DecayedCounts:
    counter = DecayedCounts([float(value) for value in right], [float(value) for value in seen])
    if len(counter.right) != POSITIONS or len(counter.seen) != POSITIONS:
        raise ValueError(f"a counter does not have {POSITIONS} positions")
    if not all(0.0 <= r <= n < 1e9 for r, n in zip(counter.right, counter.seen, strict=True)):
        raise ValueError("a counter has a negative or infinite number, or more accepted than observed tokens")
    return counter


class Learned:
    """The file with one pair's acceptance model, named by the pair's fingerprint. Notes for the user go to `notes`."""

    def __init__(self, fingerprint: str, notes: MutableSequence[str]) -> None:
        self._file = Kept(
            learned_folder() / f"{fingerprint}.json",
            "acceptance model",
            AcceptanceModel.from_dict,
            AcceptanceModel.as_dict,
            on_corrupt="it is learned again",
            on_unwritable="make it writable, or set learn = false",
        )
        self._notes = notes

    def load(self) -> AcceptanceModel:
        """Return the stored model, or a new model if none is stored or the file is corrupt."""
        return self._file.load(self._notes) or AcceptanceModel()

    def save(self, model: AcceptanceModel) -> None:
        """Save the model, or report once that the file can't be written."""
        with suppress(OSError):  # `save` reports the reason
            make_state_folder()
        self._file.save(model, self._notes)


def learned_folder() -> Path:
    """Return the folder that contains all saved acceptance models."""
    return state_folder() / "acceptance"


def forget() -> int:
    """Delete all saved acceptance models and return their number. Raises OSError if a file can't be deleted."""
    files = sorted(learned_folder().glob("*.json"))
    for file in [*files, *learned_folder().glob(f"*.json{CORRUPT}")]:
        file.unlink(missing_ok=True)
    return len(files)


@dataclass(frozen=True, slots=True)
class LearnedRow:
    """The learned acceptance rate (`chance`) of a proposer's first draft tokens, from `judged` observations."""

    pair: str
    source: str
    context: str
    judged: float
    chance: float


def learned_rows(notes: MutableSequence[str]) -> list[LearnedRow]:
    """Return the rows of all saved acceptance models. Unreadable files are skipped and reported in `notes`."""
    names = sorted(file.stem for file in learned_folder().glob("*.json"))
    models = [(name, Learned(name, notes).load()) for name in names]
    return [
        LearnedRow(name, source, context, counter.seen[0], model.rate(source, context, 0))
        for name, model in models
        for (source, context), counter in sorted(model.counters.items())
    ]
