"""`codespec bench policy`: record a pair on held-out code once, replay every draft-length policy on the recordings,
price the rounds with fixed cost tables, and time the real engine with some of the policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from statistics import mean, median
from typing import Any

from codespec.engine.engine import Engine
from codespec.errors import ConfigError
from codespec.store.machine import processor
from codespec_lab.bench.harness import Figures, Scenario, first_difference
from codespec_lab.bench.pair import LONGEST, Pair, load_pair
from codespec_lab.bench.policy.policies import (
    FOLDS,
    OWN,
    PolicyRow,
    by_file,
    by_fold,
    cost_rows,
    oracle_row,
    own_row,
    play,
    rows_of_thumb,
)
from codespec_lab.bench.policy.recording import BATCH, Recording, record
from codespec_lab.bench.policy.summary import (
    Score,
    best_of,
    class_lines,
    mismatches,
    score,
    summarize,
    tokens_by_class,
)
from codespec_lab.bench.report import format_ratio, section_title, size_of, table
from codespec_lab.bench.settings import PolicyBench
from codespec_lab.bench.sites import Site, held_out_sites, prompt_sites, spread_numbers
from codespec_lab.bench.steps import Prices, measure_costs
from codespec_lab.progress import ProgressBar

RULES = ("plus2minus1", "confidence:0.4", "ds4-80")
LEARNERS = ("cost fresh", "cost learned", "cost+syntax fresh", "cost+syntax learned")
CLASSES = 8  # in the chart
TIMED = ("off", "confidence:0.4", "cost learned", "cost+syntax learned")
BATCHES = (1, BATCH // 2, BATCH)
UNGUESSABLE = ("confidence:0.4", "cost fresh", "cost learned", "cost+syntax fresh", "cost+syntax learned")


@dataclass(slots=True)
class Timed:
    """Decoding milliseconds by policy and prompt (without prefill), and the real rounds, to be compared with a replay
    of the same prompt alone.
    """

    ms: dict[str, list[float]] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    texts: list[tuple[int, ...]] = field(default_factory=list)  # the first policy's ids
    differing: list[str] = field(default_factory=list)  # positions at which another policy's ids differ

    def ratio(self, name: str, other: str) -> float:
        """Return the speed-up over another policy: the median over prompts."""
        return median(b / a for a, b in zip(self.ms[name], self.ms[other], strict=True))

    def as_dict(self, scores: dict[str, Score]) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            name: {
                "tokens_per_second": 1000 * self.tokens[name] / sum(self.ms[name]),
                "times_off": self.ratio(name, "off"),
                "rounds_as_replayed": self._as_replayed(name, scores[name]),
            }
            for name in self.ms
        }

    def _as_replayed(self, name: str, score: Score) -> float:
        """Return the share of prompts whose rounds, drafted and accepted tokens equal the replay's."""
        expected = [(tally.rounds, tally.drafted, tally.accepted) for tally in score.by_prompt]
        return mean(a == b for a, b in zip(self.rounds[name], expected, strict=True))


def run_policy_bench(bench: PolicyBench) -> dict[str, Any]:
    """Return all figures as plain JSON values. Progress goes to stderr."""
    own = [own_row(bench.policy_file)] if bench.policy_file is not None else []
    sites, note = _sites(bench)
    pair = load_pair(bench.config, BATCH, LONGEST)
    progress = ProgressBar("record", len(sites))
    recordings = record(pair, sites, bench.tokens, progress.advance)
    if not recordings:
        raise ConfigError("No place has enough text for a draft: name longer files, or lower --warmup.")
    return {
        "date": date.today().isoformat(),
        "processor": processor().label,
        "pair": pair.facts(),
        "note": "; ".join(dict.fromkeys(filter(None, [note, *pair.notes]))),
        "prompts": _prompt_facts(recordings),
        "settings": {"tokens": bench.tokens, "longest": LONGEST, "folds": FOLDS, "warmup": pair.warmup},
        "tables": {bench.target_shape: _section(pair, recordings, bench, own)},
    }


def time_policies(
    pair: Pair, rows: Sequence[PolicyRow], recordings: Sequence[Recording], advance: Callable[[], None]
) -> Timed:
    """Complete every recording with the real engine, once under each row's policy in turn."""
    found = Timed()
    for recording in recordings:
        for row in rows:
            _complete(pair, row, recording, found)
            advance()
    return found


def _sites(bench: PolicyBench) -> tuple[list[Site], str]:
    if bench.prompts is not None:
        return prompt_sites(bench.prompts, bench.limit), "prompts of a file"
    return held_out_sites(bench.held_out, bench.limit)


def _prompt_facts(recordings: Sequence[Recording]) -> dict[str, Any]:
    languages = sorted({recording.site.language for recording in recordings})
    return {
        "count": len(recordings),
        "tokens": sum(len(recording.ids) for recording in recordings),
        "by_language": {name: sum(r.site.language == name for r in recordings) for name in languages},
        "projects": len({recording.site.project for recording in recordings}),
        "tokens_by_class": dict(tokens_by_class(recordings)),
    }


def _section(
    pair: Pair, recordings: Sequence[Recording], bench: PolicyBench, own: Sequence[PolicyRow]
) -> dict[str, Any]:
    """Return all figures of the policies."""
    prices = Prices(measure_costs(pair))
    rows = [*rows_of_thumb(), *own, *cost_rows(pair, prices, recordings)]
    progress = ProgressBar("replay", len(BATCHES) * (len(rows) + 1) + len(UNGUESSABLE) + 1)
    found: dict[str, Any] = {"costs": asdict(prices.table), "batch": {}}
    for batch in BATCHES:
        scores = _scores(pair, [*rows, oracle_row(prices, batch)], recordings, prices, batch, progress.advance)
        found["batch"][str(batch)] = summarize(scores, tokens_by_class(recordings))
        if batch == 1:
            alone = scores
    found["unguessable"] = _unguessable(pair, rows, recordings, prices, progress.advance)
    if bench.measured:
        fixed = best_of(alone, "fixed")
        chosen = [row for row in rows if row.name in (*TIMED, fixed) or row in own]
        some = [recordings[number] for number in spread_numbers(len(recordings), bench.measured)]
        found["measured"] = _measured(pair, chosen, some, prices, fixed)
    return found


def _scores(
    pair: Pair,
    rows: Sequence[PolicyRow],
    recordings: Sequence[Recording],
    prices: Prices,
    batch: int,
    advance: Callable[[], None],
) -> dict[str, Score]:
    """Return the score of every row."""
    groups = by_file(recordings) if batch == 1 else by_fold(recordings)
    scores = {}
    for row in rows:
        scores[row.name] = score(play(pair, row, groups, batch), prices, recordings)
        advance()
    return scores


def _unguessable(
    pair: Pair, rows: Sequence[PolicyRow], recordings: Sequence[Recording], prices: Prices, advance: Callable[[], None]
) -> dict[str, float]:
    """Return the speed-ups over off if every draft is another prompt's, and so right by chance only."""
    pairs = zip(recordings, [*recordings[1:], recordings[0]], strict=True)
    swapped = [_with_drafts_of(own, other) for own, other in pairs]
    scores = {}
    for row in rows:
        if row.name in ("off", *UNGUESSABLE):
            scores[row.name] = score(play(pair, row, by_file(swapped), 1), prices, swapped)
            advance()
    return {name: scores["off"].ms_per_token / found.ms_per_token for name, found in scores.items()}


def _with_drafts_of(own: Recording, other: Recording) -> Recording:
    last = max(other.drafts)
    return replace(own, drafts={position: other.drafts[min(position, last)] for position in own.drafts})


def _measured(
    pair: Pair, rows: Sequence[PolicyRow], recordings: Sequence[Recording], prices: Prices, fixed: str
) -> dict[str, Any]:
    """Time completions and compare them with their replay, each prompt alone: policies learn from earlier prompts."""
    alone = [[recording] for recording in recordings]
    scores = {row.name: score(play(pair, row, alone, 1), prices, recordings) for row in rows}
    progress = ProgressBar("measure", len(recordings) * len(rows))
    timed = time_policies(pair, rows, recordings, progress.advance)
    comparisons = [("cost+syntax learned", "cost learned"), ("cost+syntax learned", fixed), ("cost learned", fixed)]
    return {
        "prompts": len(recordings),
        "texts_as_recorded": sum(a == b.ids for a, b in zip(timed.texts, recordings, strict=True)),
        "differing": timed.differing,
        "policies": timed.as_dict(scores),
        "signs": {f"{a} / {b}": _sign(timed, scores, a, b) for a, b in comparisons},
    }


def _complete(pair: Pair, row: PolicyRow, recording: Recording, found: Timed) -> None:
    """Complete one prompt under one policy, in a new engine with new proposers."""
    proposers = [part for part in pair.proposers() if part.name in row.sources]
    engine = Engine(pair.target, proposers, row.make([recording]), context=pair.context, warmup=pair.warmup)
    done = engine.complete([recording.request])[0]
    times, stats = found.ms.setdefault(row.name, []), done.stats
    if len(times) == len(found.texts):
        found.texts.append(done.token_ids)
    position = first_difference(done.token_ids, found.texts[len(times)])
    if position is not None:
        found.differing.append(f"{row.name}, {recording.site.path}, token {position + 1}")
    times.append(stats.total_ms - stats.prefill_ms)
    found.rounds.setdefault(row.name, []).append((stats.rounds, stats.drafted, stats.accepted))
    found.tokens[row.name] = found.tokens.get(row.name, 0) + len(done.token_ids)


def _sign(timed: Timed, scores: dict[str, Score], name: str, other: str) -> dict[str, Any]:
    """Return both ratios on the same prompts, and whether they point the same way."""
    pairs = zip(scores[name].by_prompt, scores[other].by_prompt, strict=True)
    modelled, measured = median(b.seconds / a.seconds for a, b in pairs), timed.ratio(name, other)
    return {"modelled": modelled, "measured": measured, "agree": (modelled >= 1.0) == (measured >= 1.0)}


def report(found: Figures) -> list[str]:
    """Return the report as lines."""
    prompts = found["prompts"]
    lines = [f"{prompts['count']} places in {prompts['projects']} projects, {prompts['tokens']} tokens; "]
    lines[0] += ", ".join(f"{name} {count}" for name, count in prompts["by_language"].items())
    lines += [found["processor"], *([found["note"]] if found["note"] else [])]
    for shape, section in found["tables"].items():
        lines += ["", section_title(size_of(shape)), *_section_lines(section)]
    return lines


def chosen_rows(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the policies to show; the JSON has all fixed lengths."""
    own = (name for name in summary["policies"] if name.startswith(OWN))
    return ("off", summary["best_fixed"], summary["best_lookup"], *RULES, *own, *LEARNERS, "oracle")


def _section_lines(section: Mapping[str, Any]) -> list[str]:
    lines = []
    for batch, summary in section["batch"].items():
        lines += ["", f"modelled, batch {batch}:", *_table(summary)]
        lines += [
            f"  {name}: {format_ratio(ratio, 3, 'nothing to compare')}; first rounds "
            f"{format_ratio(summary['first_rounds'][name], 3)}"
            for name, ratio in summary["speed"].items()
        ]
    lines += ["", "by class (batch 1):"]
    for name in (section["batch"]["1"]["best_fixed"], "cost+syntax learned"):
        lines += [f"  {name} {line}" for line in class_lines(section["batch"]["1"], name)]
    unguessable = ", ".join(f"{name} {ratio:.3f}" for name, ratio in section["unguessable"].items() if name != "off")
    lines += ["", f"drafts of another prompt (unguessable), times as fast as off: {unguessable}"]
    return lines + (_measured_lines(section["measured"]) if "measured" in section else [])


def _table(summary: Mapping[str, Any]) -> list[str]:
    counted = ("rounds", "drafted", "accepted", "rejected")
    rows: list[list[object]] = [["policy", "ms/token", "× off", "× fixed", *counted]]
    for name in chosen_rows(summary):
        line = summary["policies"][name]
        ratios = (f"{line[key]['ratio']:.2f}" for key in ("times_off", "times_best_fixed"))
        rows.append([name, f"{line['ms_per_token']:.3f}", *ratios, *(line[key] for key in counted)])
    return table(rows)


def _measured_lines(measured: Mapping[str, Any]) -> list[str]:
    lines = ["", f"by the clock, {measured['prompts']} places, batch 1:"]
    lines += [f"  NOT EQUAL to plain: {where}" for where in measured["differing"]]
    rows = [["policy", "tokens/s", "× off", "rounds as replayed"]]
    for name, line in measured["policies"].items():
        times, rounds = f"{line['times_off']:.2f}", f"{line['rounds_as_replayed']:.0%}"
        rows.append([name, f"{line['tokens_per_second']:.1f}", times, rounds])
    lines += [f"  {line}" for line in table(rows)]
    for name, sign in measured["signs"].items():
        agree = "agree" if sign["agree"] else "DISAGREE"
        lines.append(f"  {name}: modelled {sign['modelled']:.3f}, measured {sign['measured']:.3f}: {agree} in sign")
    return lines


SCENARIO = Scenario(run_policy_bench, report, lambda found: mismatches(found["tables"]))
