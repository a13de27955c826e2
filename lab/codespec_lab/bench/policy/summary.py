"""Summarize replayed steps: modelled seconds and drafted, accepted and rejected tokens by prompt and context class, and
every policy compared with off, the best fixed length and the oracle.

Figures are plain JSON values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codespec_lab.bench.pair import LONGEST
from codespec_lab.bench.policy.recording import Recording
from codespec_lab.bench.policy.replay import ReplayedStep, Round
from codespec_lab.bench.statistics import Interval, bootstrap, interval, ratio_interval
from codespec_lab.bench.steps import Prices

Scores = Mapping[str, "Score"]
CLASSES_OF = ("cost learned", "cost+syntax learned", "oracle")  # the policies shown class by class


@dataclass(slots=True)
class Tally:
    """Sums over rounds. `missed` counts the tokens that the best recorded draft would have gained over this one."""

    seconds: float = 0.0
    rounds: int = 0
    committed: int = 0
    drafted: int = 0
    accepted: int = 0
    missed: int = 0

    @property
    def rejected(self) -> int:
        """Return the number of rejected tokens."""
        return self.drafted - self.accepted

    def add(self, played: Round, seconds: float) -> None:
        """Add a round."""
        self.seconds += seconds
        self.rounds += 1
        self.committed += played.committed
        self.drafted += played.drafted
        self.accepted += played.accepted
        drafts = played.recording.drafts.get(played.position, {})
        self.missed += max(0, *(max(draft.cuts) - played.accepted for draft in drafts.values()), 0)

    def counts(self) -> dict[str, int]:
        """Return the counts but the committed tokens, as plain JSON values."""
        names = ("rounds", "drafted", "accepted", "rejected", "missed")
        return {name: getattr(self, name) for name in names}


@dataclass(slots=True)
class Score:
    """One policy on all recordings.

    `first` has the first round of each completion, before any of its text has been verified. `by_context` counts a
    round in the context class at its start. `token_seconds` divides a round's seconds among its tokens, each in its own
    class, so that policies with different rounds can be compared class by class.
    """

    total: Tally = field(default_factory=Tally)
    by_prompt: list[Tally] = field(default_factory=list)
    first: list[Tally] = field(default_factory=list)
    by_context: dict[str, Tally] = field(default_factory=dict)
    token_seconds: dict[str, float] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)

    @property
    def ms_per_token(self) -> float:
        """Return the modelled milliseconds per committed token."""
        return 1000 * self.total.seconds / self.total.committed


def score(steps: Sequence[ReplayedStep], prices: Prices, recordings: Sequence[Recording]) -> Score:
    """Price a replay; a step's seconds are divided equally among its rounds."""
    result = Score(by_prompt=[Tally() for _ in recordings], first=[Tally() for _ in recordings])
    numbers = {recording.prompt_ids: number for number, recording in enumerate(recordings)}
    for step in steps:
        share = prices.step(step) / len(step.rounds)
        for played in step.rounds:
            context = class_at(played.recording, played.position)
            number = numbers[played.recording.prompt_ids]
            for tally in (result.total, result.by_prompt[number], result.by_context.setdefault(context, Tally())):
                tally.add(played, share)
            if played.position == 0:
                result.first[number].add(played, share)
            result.lengths[played.drafted] += 1
            for offset in range(played.committed):
                written = class_at(played.recording, played.position + offset)
                seconds = result.token_seconds.get(written, 0.0)
                result.token_seconds[written] = seconds + share / played.committed
    return result


def class_at(recording: Recording, position: int) -> str:
    """Return the context class at a position; after the last possible draft, the last known class."""
    return recording.contexts.get(position) or recording.contexts[max(p for p in recording.contexts if p <= position)]


def tokens_by_class(recordings: Sequence[Recording]) -> Mapping[str, int]:
    """Return the number of tokens in each class."""
    return Counter(class_at(recording, n) for recording in recordings for n in range(len(recording.ids)))


def ratio(above: Score, below: Score, of: str) -> Interval | None:
    """Return one policy's sum of a field of `Tally` over another's, paired by prompt."""
    over, under = ([getattr(tally, of) for tally in found.by_prompt] for found in (above, below))
    return ratio_interval(over, under)


def first_rounds(own: Score, other: Score) -> Interval:
    """Return the ratio of tokens per second in the first rounds of completions to another policy's."""

    def of_rates(pairs: Sequence[tuple[Tally, Tally]]) -> float:
        return _rate([own for own, _ in pairs]) / _rate([other for _, other in pairs])

    pairs = list(zip(own.first, other.first, strict=True))
    return interval(of_rates(pairs), bootstrap(pairs, of_rates))


def _rate(tallies: Sequence[Tally]) -> float:
    return sum(tally.committed for tally in tallies) / sum(tally.seconds for tally in tallies)


def best_of(scores: Scores, kind: str) -> str:
    """Return the name of the cheapest fixed length: `fixed:N`, or `lookup:N` without a drafter. It is chosen and
    evaluated on the same prompts, which favours it.
    """
    return min((name for name in scores if name.startswith(f"{kind}:")), key=lambda name: scores[name].ms_per_token)


def summarize(scores: Scores, tokens: Mapping[str, int]) -> dict[str, Any]:
    """Return all figures of one cost table and batch size."""
    fixed, lookup = best_of(scores, "fixed"), best_of(scores, "lookup")
    pairs = {
        f"cost+syntax {kind} / {other}": (f"cost+syntax {kind}", other)
        for kind in ("fresh", "learned")
        for other in (f"cost {kind}", fixed, lookup)
    }
    return {
        "best_fixed": fixed,
        "best_lookup": lookup,
        "policies": {name: _line(found, scores["off"], scores[fixed]) for name, found in scores.items()},
        "speed": {name: ratio(scores[b], scores[a], "seconds") for name, (a, b) in pairs.items()},
        "first_rounds": {name: first_rounds(scores[a], scores[b]) for name, (a, b) in pairs.items()},
        "accepted": {name: ratio(scores[a], scores[b], "accepted") for name, (a, b) in pairs.items()},
        "rejected": {name: ratio(scores[a], scores[b], "rejected") for name, (a, b) in pairs.items()},
        "by_class": {name: _classes(scores[name], scores["oracle"], tokens) for name in (fixed, lookup, *CLASSES_OF)},
    }


def mismatches(tables: Mapping[str, Any]) -> list[str]:
    """List the timed texts that differ from plain decoding's."""
    found = []
    for shape, section in tables.items():
        measured = section.get("measured", {"differing": (), "prompts": 0, "texts_as_recorded": 0})
        found += [f"{where}, {shape}" for where in measured["differing"]]
        if measured["texts_as_recorded"] < measured["prompts"]:
            others = measured["prompts"] - measured["texts_as_recorded"]
            found.append(f"off, {others} of {measured['prompts']} texts are not as recorded")
    return found


def class_lines(summary: Mapping[str, Any], name: str) -> list[str]:
    """Return the three classes each that waste most drafts, draft too little, and are farthest from the oracle."""
    classes = summary["by_class"][name]
    wasteful = sorted(classes, key=lambda c: -classes[c]["rejected"])[:3]
    timid = sorted(classes, key=lambda c: -classes[c]["missed"])[:3]
    far = sorted(classes, key=lambda c: -classes[c]["share_of_excess"])[:3]
    return [
        "wastes most in " + ", ".join(f"{c} ({classes[c]['rejected']} rejected)" for c in wasteful),
        "drafts too little in " + ", ".join(f"{c} ({classes[c]['missed']} missed)" for c in timid),
        "farthest from the oracle in " + ", ".join(f"{c} ({classes[c]['share_of_excess']:.0%})" for c in far),
    ]


def _line(found: Score, off: Score, fixed: Score) -> dict[str, Any]:
    return {
        "ms_per_token": found.ms_per_token,
        "times_off": ratio(off, found, "seconds"),
        "times_best_fixed": ratio(fixed, found, "seconds"),
        **found.total.counts(),
        "lengths": [found.lengths[length] for length in range(LONGEST + 1)],
    }


def _classes(found: Score, oracle: Score, tokens: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    excess = max(1e-12, found.total.seconds - oracle.total.seconds)
    result = {}
    for context, count in sorted(tokens.items(), key=lambda item: -item[1]):
        seconds, best = found.token_seconds.get(context, 0.0), oracle.token_seconds.get(context, 0.0)
        result[context] = {
            "tokens": count,
            "ms_per_token": 1000 * seconds / count,
            "times_oracle": seconds / best if best else 1.0,
            "share_of_excess": (seconds - best) / excess,
            **found.by_context.get(context, Tally()).counts(),
        }
    return result
