"""From scores to figures: every policy against off, the best fixed length and the oracle, class by class, and whether
what was hoped for holds. Knows scores; plain JSON values come out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codespec.bench.bootstrap import Interval
from codespec.bench.policy_scores import Score, accepted, rejected, speed
from codespec.bench.recording import LONGEST

Scores = Mapping[str, Score]
LEAST_OVER_COST, LEAST_OVER_FIXED, LEAST_ACCEPTED, MOST_REJECTED = 1.0, 1.03, 0.97, 0.75
BY_CLASS = ("cost learned", "cost+syntax learned", "oracle")


def best_of(scores: Scores, kind: str) -> str:
    """The cheapest fixed length: `fixed:N`, or `lookup:N` without a drafter. Chosen on the prompts it is judged by,
    which favours it.
    """
    return min((name for name in scores if name.startswith(f"{kind}:")), key=lambda name: scores[name].ms_per_token)


def summarize(scores: Scores, tokens: Mapping[str, int]) -> dict[str, Any]:
    """All figures of one cost table and batch size."""
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
        "speed": {name: _values(speed(scores[a], scores[b])) for name, (a, b) in pairs.items()},
        "accepted": {name: _values(accepted(scores[a], scores[b])) for name, (a, b) in pairs.items()},
        "rejected": {name: _values(rejected(scores[a], scores[b])) for name, (a, b) in pairs.items()},
        "by_class": {name: _classes(scores[name], scores["oracle"], tokens) for name in (fixed, lookup, *BY_CLASS)},
    }


def verdicts(summary: Mapping[str, Any]) -> dict[str, bool]:
    """What issue 4 asks of the modelled figures, and whether it holds."""
    found: dict[str, bool] = {}
    for kind in ("fresh", "learned"):
        name, fixed = f"cost+syntax {kind}", summary["best_fixed"]
        against_cost, against_fixed = f"{name} / cost {kind}", f"{name} / {fixed}"
        claims = {
            f"at least the cost rule alone (lower bound ≥ {LEAST_OVER_COST:.2f})": _at_least(
                summary["speed"][against_cost], "low", LEAST_OVER_COST
            ),
            f"faster than the best fixed length (lower bound ≥ {LEAST_OVER_FIXED:.2f})": _at_least(
                summary["speed"][against_fixed], "low", LEAST_OVER_FIXED
            ),
            f"accepted ≥ {LEAST_ACCEPTED:.0%} of the best fixed length's": _at_least(
                summary["accepted"][against_fixed], "ratio", LEAST_ACCEPTED
            ),
            f"at least {1 - MOST_REJECTED:.0%} fewer rejected": not _at_least(
                summary["rejected"][against_fixed], "ratio", MOST_REJECTED + 1e-9
            ),
        }
        found |= {f"{name}: {claim}": holds for claim, holds in claims.items()}
    return found


def _at_least(interval: Mapping[str, float] | None, bound: str, least: float) -> bool:
    """Whether a bound of a ratio is large enough; of nothing there is always enough."""
    return interval is None or interval[bound] >= least


def mismatches(tables: Mapping[str, Any]) -> list[str]:
    """Where a text by the clock differs from plain decoding's. An enlarged target writes near-ties of its own, so there
    the recorded texts are no measure.
    """
    found = []
    for shape, section in tables.items():
        measured = section.get("measured", {"differing": (), "prompts": 0, "texts_as_recorded": 0})
        found += [f"{where}, {shape}" for where in measured["differing"]]
        if shape == "own" and measured["texts_as_recorded"] < measured["prompts"]:
            others = measured["prompts"] - measured["texts_as_recorded"]
            found.append(f"off, {others} of {measured['prompts']} texts are not as recorded")
    return found


def class_lines(summary: Mapping[str, Any], name: str, count: int = 3) -> list[str]:
    """Which classes waste drafts, and which draft too little."""
    classes = summary["by_class"][name]
    wasteful = sorted(classes, key=lambda c: -classes[c]["rejected"])[:count]
    shy = sorted(classes, key=lambda c: -classes[c]["missed"])[:count]
    far = sorted(classes, key=lambda c: -classes[c]["share_of_excess"])[:count]
    return [
        "wastes most in " + ", ".join(f"{c} ({classes[c]['rejected']} rejected)" for c in wasteful),
        "drafts too little in " + ", ".join(f"{c} ({classes[c]['missed']} missed)" for c in shy),
        "farthest from the oracle in " + ", ".join(f"{c} ({classes[c]['share_of_excess']:.0%})" for c in far),
    ]


def _line(found: Score, off: Score, fixed: Score) -> dict[str, Any]:
    total = found.total
    return {
        "ms_per_token": found.ms_per_token,
        "times_off": _values(speed(found, off)),
        "times_best_fixed": _values(speed(found, fixed)),
        "rounds": total.rounds,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "rejected": total.rejected,
        "missed": total.missed,
        "lengths": [found.lengths[length] for length in range(LONGEST + 1)],
        "by_class": {context: tally.as_dict() for context, tally in sorted(found.by_context.items())},
    }


def _classes(found: Score, oracle: Score, tokens: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    excess = max(1e-12, found.total.seconds - oracle.total.seconds)
    result = {}
    for context, count in sorted(tokens.items(), key=lambda item: -item[1]):
        seconds, best = found.token_seconds.get(context, 0.0), oracle.token_seconds.get(context, 0.0)
        tally = found.by_context.get(context)
        result[context] = {
            "tokens": count,
            "ms_per_token": 1000 * seconds / count,
            "times_oracle": seconds / best if best else 1.0,
            "share_of_excess": (seconds - best) / excess,
            "rounds": tally.rounds if tally else 0,
            "drafted": tally.drafted if tally else 0,
            "accepted": tally.accepted if tally else 0,
            "rejected": tally.rejected if tally else 0,
            "missed": tally.missed if tally else 0,
        }
    return result


def _values(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else interval.as_dict()
