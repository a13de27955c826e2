"""How likely a draft's tokens are right: counters that forget, by proposer, context, language and position.

A place with few counts borrows from the wider one: context and language → context → everything. A drafter's confidence
and the luck a text had lately move that chance by weights which are learned too (logistic regression, one step a
judged token). Knows counts and chances, no text, no cost and no length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codespec.control.priors import POSITIONS, logit, prior_of, sigmoid

DECAY = 0.995  # of a counter, each time it counts: about the last 200 judgements hold
STRENGTH = 8.0  # judgements that a prior or a wider place is worth
STEP = 0.02  # of the regression
LUCK_MEMORY, LUCK_STEP = 0.97, 0.4  # of a text's own log-odds, and what one surprise moves them by
MOST_LUCK = 3.0  # either way, so that a text which changes is believed again soon

Place = tuple[str, str]  # (context, language); "" is any


@dataclass(slots=True)
class Counter:
    """Decayed judgements and how many of them were right, by position."""

    right: list[float] = field(default_factory=lambda: [0.0] * POSITIONS)
    seen: list[float] = field(default_factory=lambda: [0.0] * POSITIONS)

    def count(self, position: int, right: bool) -> None:
        """One more judgement; older ones weigh a little less."""
        self.right[position] = DECAY * self.right[position] + right
        self.seen[position] = DECAY * self.seen[position] + 1.0

    def means(self, priors: Sequence[float]) -> list[float]:
        """By position, the posterior means under Beta priors of STRENGTH judgements."""
        turns = zip(self.right, self.seen, priors, strict=True)
        return [(right + STRENGTH * prior) / (seen + STRENGTH) for right, seen, prior in turns]


class Survival:
    """All counters and weights of one pair. Positions count from 0."""

    def __init__(self) -> None:
        self.counters: dict[tuple[str, str, str], Counter] = {}  # (source, context, language)
        self.weights: dict[str, list[float]] = {}  # source -> bias, confidence, rate, luck
        self._odds: dict[tuple[str, str, str], tuple[float, ...]] = {}

    def rate(self, source: str, place: Place, position: int) -> float:
        """The learned chance that a position is right, all before it being right."""
        return sigmoid(self.odds(source, place)[min(position, POSITIONS - 1)])

    def odds(self, source: str, place: Place) -> tuple[float, ...]:
        """The same for all positions, as log-odds."""
        key = (source, *place)
        if key not in self._odds:
            self._odds[key] = tuple(map(logit, self._rates(source, place)))
        return self._odds[key]

    def survivals(
        self, source: str, place: Place, luck: float, count: int, confidences: Sequence[float] | None = None
    ) -> list[float]:
        """For the first `count` tokens the chance that they and all before them are right: before they are drafted,
        or with the drafter's `confidences` of them (the last one holds for all behind). Never rises.
        """
        odds, (bias, by_confidence, by_rate, by_luck) = self.odds(source, place), self._weights(source)
        if confidences is None:
            bias, by_rate, known = 0.0, 1.0, [0.0]
        else:
            known = [by_confidence * logit(confidence) for confidence in confidences[:count]]
        chances, survival, base, last = [], 1.0, bias + by_luck * luck, len(known) - 1
        for number in range(count):
            here = odds[number] if number < POSITIONS else odds[-1]
            survival *= sigmoid(base + by_rate * here + (known[number] if number < last else known[last]))
            chances.append(survival)
        return chances

    def seen(self, source: str, place: Place) -> float:
        """Judgements of first tokens that are remembered here."""
        counter = self.counters.get((source, *place))
        return counter.seen[0] if counter else 0.0

    def learn(self, source: str, place: Place, luck: float, confidences: Sequence[float], accepted: int) -> float:
        """Takes one verdict: `confidences` of all judged tokens, of which the first `accepted` were right and the next
        (if there is one) was wrong. Returns the text's luck afterwards.
        """
        odds, weights = self.odds(source, place), self._weights(source)
        counters = [self._counter((source, *wider)) for wider in dict.fromkeys((("", ""), (place[0], ""), place))]
        for number, confidence in enumerate(confidences[: accepted + 1]):
            position, right = min(number, POSITIONS - 1), number < accepted
            for counter in counters:
                counter.count(position, right)
            error = _step(weights, logit(confidence), odds[position], luck, right)
            luck = max(-MOST_LUCK, min(MOST_LUCK, LUCK_MEMORY * luck + LUCK_STEP * error))
        self._odds = {key: found for key, found in self._odds.items() if key[0] != source}
        return luck

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        counters = [[*key, counter.right, counter.seen] for key, counter in sorted(self.counters.items())]
        return {"counters": counters, "weights": self.weights}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Survival:
        """Reads what `as_dict` wrote. Raises ValueError, TypeError or KeyError for anything else."""
        survival = cls()
        for source, context, language, right, seen in values["counters"]:
            counter = Counter(_numbers(right, POSITIONS), _numbers(seen, POSITIONS))
            if any(not 0.0 <= r <= n for r, n in zip(counter.right, counter.seen, strict=True)):
                raise ValueError("a counter holds more right judgements than judgements")
            survival.counters[str(source), str(context), str(language)] = counter
        survival.weights = {str(source): _numbers(found, 4) for source, found in values["weights"].items()}
        return survival

    def _rates(self, source: str, place: Place) -> list[float]:
        """By position."""
        context, language = place
        prior = prior_of(source)
        rates = self._means((source, "", ""), [prior.chance(position) for position in range(POSITIONS)])
        if context:
            rates[0] = sigmoid(logit(rates[0]) + prior.shift(context))
            rates = self._means((source, context, ""), rates)
        if language:
            rates = self._means((source, context, language), rates)
        return rates

    def _means(self, key: tuple[str, str, str], priors: list[float]) -> list[float]:
        counter = self.counters.get(key)
        return counter.means(priors) if counter else priors

    def _counter(self, key: tuple[str, str, str]) -> Counter:
        if key not in self.counters:
            self.counters[key] = Counter()
        return self.counters[key]

    def _weights(self, source: str) -> list[float]:
        prior = prior_of(source)
        return self.weights.setdefault(source, [prior.bias, prior.confidence, prior.rate, prior.luck])


def _step(weights: list[float], confidence: float, rate: float, luck: float, right: bool) -> float:
    """Moves the weights by one judgement, whose features are log-odds; returns how far the chance was off."""
    bias, by_confidence, by_rate, by_luck = weights
    error = right - sigmoid(bias + by_confidence * confidence + by_rate * rate + by_luck * luck)
    move = STEP * error
    weights[:] = bias + move, by_confidence + move * confidence, by_rate + move * rate, by_luck + move * luck
    return error


def _numbers(values: Any, count: int) -> list[float]:
    numbers = [float(value) for value in values]
    if len(numbers) != count or not all(abs(number) < 1e9 for number in numbers):
        raise ValueError(f"{count} finite numbers were expected")
    return numbers
