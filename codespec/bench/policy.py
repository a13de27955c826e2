"""`codespec bench policy`: records a pair on held-out code once, replays every draft-length policy on the recording,
prices the rounds by fixed cost tables, and lets the clock check some of them.

Knows the order of things; the parts know how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from codespec.bench.pair import Pair, load_pair
from codespec.bench.policy_measured import Measured, measure_policies
from codespec.bench.policy_rows import FOLDS, Row, by_file, by_fold, cost_rows, oracle_row, play, rows_of_thumb
from codespec.bench.policy_scores import Score, score, tokens_by_class
from codespec.bench.policy_spots import held_out_spots, prompt_spots, spread_numbers
from codespec.bench.policy_summary import best_of, summarize, verdicts
from codespec.bench.pricing import Prices, measure_costs, read_costs
from codespec.bench.recording import BATCH, LONGEST, Recording, Spot, record
from codespec.bench.tape import Step
from codespec.config import EngineConfig
from codespec.errors import ConfigError
from codespec.models.processor import processor
from codespec.progress import ProgressBar

MEASURED = ("off", "confidence:0.4", "cost learned", "cost+syntax learned")
UNGUESSABLE = ("confidence:0.4", "cost fresh", "cost learned", "cost+syntax fresh", "cost+syntax learned")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBench:
    """What is to be measured: `limit` places a language, `tokens` a completion, `measured` of them by the clock, priced
    as the pair is and, with `shape`, as if its target were that large. `costs` is an earlier run's file with tables.
    """

    config: EngineConfig
    held_out: Path | None = None
    prompts: Path | None = None
    limit: int = 24
    tokens: int = 64
    measured: int = 12
    shape: str = ""
    costs: Path | None = None


def run_policy_bench(bench: PolicyBench) -> dict[str, Any]:
    """The whole bench; all figures as plain JSON values. Progress goes to stderr."""
    spots, note = _spots(bench)
    pair = load_pair(bench.config, BATCH, LONGEST)
    notes = [note, *pair.notes]
    steps = ProgressBar("record", len(spots))
    recordings = record(pair, spots, bench.tokens, steps.advance)
    if not recordings:
        raise ConfigError("No place has enough text for a draft: name longer files, or lower --warmup.")
    sections = {"own": _section(pair, recordings, bench, "own")}
    if bench.shape:
        shaped = load_pair(replace(bench.config, target_shape=bench.shape), BATCH, LONGEST)
        notes += shaped.notes
        sections[bench.shape] = _section(shaped, recordings, bench, bench.shape)
    return {
        "date": date.today().isoformat(),
        "processor": processor().label,
        "pair": pair.facts(),
        "note": "; ".join(dict.fromkeys(filter(None, notes))),
        "prompts": _prompt_facts(recordings),
        "settings": {"tokens": bench.tokens, "longest": LONGEST, "folds": FOLDS, "warmup": pair.warmup},
        "tables": sections,
    }


def _spots(bench: PolicyBench) -> tuple[list[Spot], str]:
    if bench.prompts is not None:
        return prompt_spots(bench.prompts, bench.limit), "prompts of a file"
    return held_out_spots(bench.held_out, bench.limit)


def _prompt_facts(recordings: Sequence[Recording]) -> dict[str, Any]:
    languages = sorted({recording.spot.language for recording in recordings})
    return {
        "count": len(recordings),
        "tokens": sum(len(recording.ids) for recording in recordings),
        "by_language": {name: sum(r.spot.language == name for r in recordings) for name in languages},
        "projects": len({recording.spot.project for recording in recordings}),
        "tokens_by_class": dict(tokens_by_class(recordings)),
    }


def _section(pair: Pair, recordings: Sequence[Recording], bench: PolicyBench, shape: str) -> dict[str, Any]:
    """Everything for one size of the target."""
    prices = Prices(read_costs(bench.costs, shape) if bench.costs else measure_costs(pair))
    rows = [*rows_of_thumb(), *cost_rows(pair, prices, recordings)]
    steps = ProgressBar(f"replay {shape}", 2 * (len(rows) + 1) + len(UNGUESSABLE) + 1)
    found: dict[str, Any] = {"costs": prices.table.as_dict(), "batch": {}}
    for batch in (1, BATCH):
        scores = _scores(pair, [*rows, oracle_row(prices, batch)], recordings, prices, batch, steps.advance)
        found["batch"][str(batch)] = summary = summarize(scores, tokens_by_class(recordings))
        if batch == 1:
            found["verdicts"] = verdicts(summary)
            alone = scores
    found["unguessable"] = _unguessable(pair, rows, recordings, prices, steps.advance)
    if bench.measured:
        fixed = best_of(alone, "fixed")
        chosen = [row for row in rows if row.name in (*MEASURED, fixed)]
        spread = [recordings[number] for number in spread_numbers(len(recordings), bench.measured)]
        found["measured"] = _measured(pair, chosen, spread, prices, fixed)
    return found


def _scores(
    pair: Pair,
    rows: Sequence[Row],
    recordings: Sequence[Recording],
    prices: Prices,
    batch: int,
    advance: Callable[[], None],
) -> dict[str, Score]:
    """Every row's score."""
    groups = by_file(recordings) if batch == 1 else by_fold(recordings)
    scores = {}
    for row in rows:
        played: list[Step] = play(pair, row, groups, batch)
        scores[row.name] = score(played, prices, recordings)
        advance()
    return scores


def _unguessable(
    pair: Pair, rows: Sequence[Row], recordings: Sequence[Recording], prices: Prices, advance: Callable[[], None]
) -> dict[str, float]:
    """Times as fast as off where every draft is another prompt's: it is right by chance only."""
    strange = [_strange(a, b) for a, b in zip(recordings, [*recordings[1:], recordings[0]], strict=True)]
    chosen = [row for row in rows if row.name in ("off", *UNGUESSABLE)]
    scores = {}
    for row in chosen:
        scores[row.name] = score(play(pair, row, by_file(strange), 1), prices, strange)
        advance()
    return {name: scores["off"].ms_per_token / found.ms_per_token for name, found in scores.items()}


def _strange(own: Recording, other: Recording) -> Recording:
    """A recording with another one's guesses."""
    last = max(other.guesses)
    return replace(own, guesses={place: other.guesses[min(place, last)] for place in own.guesses})


def _measured(
    pair: Pair, rows: Sequence[Row], recordings: Sequence[Recording], prices: Prices, fixed: str
) -> dict[str, Any]:
    """What the clock says of recordings, beside their replay: each alone, for a rule learns from the one before."""
    alone = [[recording] for recording in recordings]
    scores = {row.name: score(play(pair, row, alone, 1), prices, recordings) for row in rows}
    steps = ProgressBar("measure", len(recordings) * len(rows))
    measured = measure_policies(pair, rows, recordings, steps.advance)
    comparisons = [("cost+syntax learned", "cost learned"), ("cost+syntax learned", fixed), ("cost learned", fixed)]
    return {
        "prompts": len(recordings),
        "texts_as_recorded": sum(a == b.ids for a, b in zip(measured.texts, recordings, strict=True)),
        "differing": measured.differing,
        "policies": measured.as_dict(scores),
        "signs": {f"{a} / {b}": _sign(measured, scores, a, b) for a, b in comparisons},
    }


def _sign(measured: Measured, scores: dict[str, Score], name: str, other: str) -> dict[str, Any]:
    """Both ratios on the same prompts, and whether they point the same way."""
    modelled = _modelled(scores[name], scores[other])
    clock = measured.ratio(name, other)
    return {"modelled": modelled, "measured": clock, "agree": (modelled >= 1.0) == (clock >= 1.0)}


def _modelled(own: Score, other: Score) -> float:
    return median(b.seconds / a.seconds for a, b in zip(own.by_prompt, other.by_prompt, strict=True))
