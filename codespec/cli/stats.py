"""`codespec stats`: show a daemon's counters, the same as in /metrics, and the learned acceptance rates."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from codespec.cli.options import add_address_options, find_address
from codespec.errors import ConfigError
from codespec.speculation.acceptance_model import LearnedRow, forget, learned_folder, learned_rows
from codespec.store.disk import say

ABSENT = {
    "nobody": "No daemon answers at {url}: `codespec serve` starts one.",
    "locked": "The daemon at {url} requires its token: give --token-file, or set CODESPEC_SERVE_TOKEN.",
    "stranger": "The program at {url} can't prove that it is your daemon: check --url, or restart the daemon.",
    "silent": "The program at {url} does not answer as a daemon does: check --url, or run `codespec doctor`.",
}
STILL_KNOWN = "The daemon at {url} saves its learned state again when it stops: stop it, then use --reset again."


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "stats",
        help="show a daemon's counters and the learned acceptance rates",
        description="Shows the counters of a running daemon, and the recent acceptance rates by context and proposer.",
    )
    add_address_options(parser)
    parser.add_argument(
        "--reset", action="store_true", help="delete the learned state of every pair, but no daemon's counters"
    )
    parser.add_argument("--by", choices=("key",), help="show the daemon's usage by key instead: requests and tokens")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the tables, or with --reset delete the learned state and print the number of deleted pairs; return 0."""
    address = find_address(options)
    found = address.look()
    if options.reset:
        try:
            removed = forget()
        except OSError as error:
            what = f"The learned state can't be removed from {learned_folder()} ({error.strerror})"
            raise ConfigError(what, "make the folder writable") from error
        print(json.dumps({"forgotten": removed}) if options.json else f"forgotten: {removed} pair(s)")
        if found.who == "daemon":
            say(STILL_KNOWN.format(url=address.url))
        return 0
    if found.who in ABSENT:
        say(ABSENT[found.who].format(url=address.url))
    notes: list[str] = []
    rows = learned_rows(notes)
    say(*notes)
    if options.json:
        daemon = {"url": address.url, **found.daemon} if found.daemon else None
        learned = [asdict(row) for row in rows]
        print(json.dumps({"daemon": daemon, "families": found.stats.get("families", []), "learned": learned}))
    elif options.by:
        print("\n".join(render_keys(found.stats) if found.daemon else []))
    else:
        heads = [*_heads(address.url, found.daemon), "", *render(found.stats)] if found.daemon else []
        learned_from = ["", f"learned, from {learned_folder()}:", ""] if found.daemon else []
        print("\n".join([*heads, *learned_from, *render_learned(rows)]))
    return 0


def _heads(url: str, daemon: Mapping[str, Any]) -> list[str]:
    model = daemon.get("model") or "no model yet"
    lines = [f"daemon {url}: codespec {daemon['version']}, {daemon['state']}, {model}; since it began:"]
    if kernel := daemon.get("kernel"):
        lines.append(f"kernel: {kernel}")
    if upstream := daemon.get("upstream"):
        fills = f"fills in {upstream['fill_in']}" if upstream.get("fill_in") else "does not fill in"
        lines.append(f"upstream: {upstream['url']}, {fills}, circuit {upstream['circuit']}")
        if upstream.get("failures"):
            lines[-1] += f" ({upstream['failures']} failures in a row: {upstream['reason']})"
    return [*lines, *(f"note: {note}" for note in daemon.get("notes", []))]


def render_learned(rows: Sequence[LearnedRow]) -> list[str]:
    """Return the lines of a table of learned acceptance rates for each pair."""
    lines = []
    for pair in dict.fromkeys(row.pair for row in rows):
        lines += [f"pair {pair}", f"{'proposer':<14}{'context':<14}{'judged':>8}{'right':>8}"]
        for row in rows:
            if row.pair == pair:
                where = f"{row.source:<14}{row.context or 'any':<14}"
                lines.append(f"{where}{row.judged:>8.0f}{100 * row.chance:>6.0f} %")
    return lines or ["nothing has been learned yet"]


class Figures:
    """The metric samples in a daemon's reply to /v1/codespec/stats."""

    def __init__(self, stats: Mapping[str, Any]) -> None:
        self._samples = [sample for family in stats["families"] for sample in family["samples"]]

    def by(self, name: str, label: str, *, zeros: bool = False) -> dict[str, float]:
        """Return a metric's sum for each value of a label, without zero sums unless `zeros` is true."""
        sums: Counter[str] = Counter()
        for sample in self._samples:
            if sample["name"] == f"codespec:{name}":
                sums[sample["labels"].get(label, "")] += sample["value"]
        return {key: value for key, value in sums.items() if value or zeros}

    def sum(self, name: str) -> float:
        return self.by(name, "").get("", 0)

    def quantile(self, name: str, share: float) -> float | None:
        """Return the smallest bucket bound that covers this share of a histogram, or None if the histogram is empty."""
        buckets = sorted((float(le), count) for le, count in self.by(f"{name}_bucket", "le").items())
        return next((bound for bound, count in buckets if count >= share * buckets[-1][1]), None)


def render(stats: Mapping[str, Any]) -> list[str]:
    """Return the lines that show the daemon's counters."""
    figures = Figures(stats)
    total = figures.sum
    tokens, rounds = total("generation_tokens_total"), total("rounds_total")
    seconds, plain = total("goodput_seconds_total"), total("goodput_plain_seconds_total")
    phases = figures.by("step_seconds_total", "phase")
    lines = {
        "requests": f"{total('requests_total'):,} finished, {total('num_requests_running')} running, "
        f"{total('num_requests_waiting')} waiting, {total('requests_refused_total'):,} refused",
        "ended": _parts(figures, "request_success_total", "finished_reason"),
        "cut short": _parts(figures, "requests_cancelled_total", "reason"),
        "failed": _parts(figures, "requests_failed_total", "fault"),
        "upstream": _parts(figures, "upstream_requests_total", "outcome"),
        "waited": _times(figures, "request_queue_time_seconds"),
        "first text": _times(figures, "time_to_first_token_seconds"),
        "whole text": _times(figures, "e2e_request_latency_seconds"),
        "prompts": _prompts(figures),
        "written": rounds and f"{tokens:,} tokens in {rounds:,} rounds, {tokens / rounds:.2f} a round",
        "against plain": seconds
        and f"{plain / seconds:.2f} × ({total('goodput_tokens_total'):,} tokens in "
        f"{seconds:.1f} s; plain {plain:.1f} s by the cost table)",
        "mode": ", ".join(figures.by("mode", "mode")),
        "time": ", ".join(f"{phase} {value / sum(phases.values()):.0%}" for phase, value in phases.items()),
    }
    return [f"{label:<14} {text}" for label, text in lines.items() if text]


def render_keys(stats: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table with the requests and tokens of each key."""
    figures = Figures(stats)
    requests = figures.by("key_requests_total", "key", zeros=True)
    counted = ("prompt_tokens_total", "generation_tokens_total", "requests_open", "requests_refused_total")
    parts = [figures.by(f"key_{name}", "key") for name in counted]
    lines = [f"{'key':<24}{'requests':>10}{'prompts':>12}{'written':>12}{'open':>6}{'refused':>9}"]
    for name, count in sorted(requests.items(), key=lambda item: (-item[1], item[0])):
        prompts, written, now, no = (int(part.get(name, 0)) for part in parts)
        lines.append(f"{name:<24}{int(count):>10,}{prompts:>12,}{written:>12,}{now:>6,}{no:>9,}")
    return lines if requests else ["the daemon has no keys: `codespec keys add`, then `codespec serve --keys FILE`"]


def _parts(figures: Figures, name: str, label: str) -> str:
    return ", ".join(f"{key} {value:,}" for key, value in figures.by(name, label).items())


def _times(figures: Figures, name: str) -> str:
    texts = []
    for share in (0.5, 0.95, 0.99):
        if (seconds := figures.quantile(name, share)) is not None:
            bound = "beyond the last bound" if seconds == float("inf") else f"≤ {1000 * seconds:g}"
            texts.append(f"p{100 * share:.0f} {bound}")
    return ", ".join(texts) + " ms" if texts else ""


def _prompts(figures: Figures) -> str:
    queries = figures.by("prefix_cache_queries_total", "model")
    hits = figures.by("prefix_cache_hits_total", "model")
    cached = {model: hits.get(model, 0) / count for model, count in queries.items()}
    return "; ".join(f"{model} {queries[model]:,} tokens, {share:.0%} cached" for model, share in cached.items())
