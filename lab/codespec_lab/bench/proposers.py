"""`codespec bench proposers`: every proposer alone and in chains, on the same prompts and target.

Measure tokens accepted a round, milliseconds a draft, and the speed-up over decoding without drafts, at several
concurrencies. Prefill is not timed. The rows take turns, batch by batch, and every text must equal the one without
drafts.
"""

from __future__ import annotations

import collections.abc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from codespec.contract.types import Completion, CompletionRequest, Stats
from codespec.engine.engine import Engine
from codespec.errors import ConfigError
from codespec.models.heads.drafting import HeadRunner, make_runner
from codespec.proposers.base import Proposer
from codespec.proposers.chain import ChainProposer
from codespec.proposers.head import make_proposer
from codespec.sequence import Cap, Draft
from codespec.sequence import Sequence as Text
from codespec.speculation.cost_model import CostTable
from codespec.speculation.cost_policy import CostPolicy
from codespec.speculation.policy import DraftLengthPolicy, FixedLength
from codespec.startup.costs import measure_table
from codespec.startup.tuning import longest_draft
from codespec.store.processor import processor
from codespec_lab.bench.harness import Figures, Scenario, in_turn
from codespec_lab.bench.pair import LONGEST, Pair, load_pair
from codespec_lab.bench.report import table
from codespec_lab.bench.settings import ProposerBench
from codespec_lab.bench.sites import Site, mixed_sites
from codespec_lab.progress import ProgressBar

OFF, CHAIN = "off", "chain"
TABLE_SECONDS = 6.0


class TimedChain(ChainProposer):
    """A chain that counts its drafts and times them."""

    def __init__(self, proposers: Sequence[Proposer]) -> None:
        super().__init__(proposers)
        self.drafts, self.seconds = 0, 0.0

    def propose(self, sequences: collections.abc.Sequence[Text], caps: collections.abc.Sequence[Cap]) -> list[Draft]:
        """Return the chain's drafts."""
        began = time.perf_counter()
        found = super().propose(sequences, caps)
        made = sum(bool(draft.ids or draft.text) for draft in found)
        if made:
            self.drafts, self.seconds = self.drafts + made, self.seconds + time.perf_counter() - began
        return found


@dataclass(slots=True)
class Tally:
    """The sums of one row at one concurrency."""

    stats: Stats = field(default_factory=Stats)
    seconds: list[float] = field(default_factory=list)  # per batch
    tokens: list[int] = field(default_factory=list)
    drafts: int = 0
    drafting: float = 0.0
    texts: list[tuple[int, ...]] = field(default_factory=list)


class Arena:
    """The loaded models and their cost table, for engines that take turns."""

    def __init__(self, bench: ProposerBench) -> None:
        self.bench = bench
        most = max(bench.concurrency)
        self.pair: Pair = load_pair(bench.config, most, LONGEST, bench.heads)
        self.runners: dict[str, HeadRunner] = {}
        for head in self.pair.heads:
            name, number = str(head.config.kind), 1
            while name in self.runners:
                number += 1
                name = f"{head.config.kind}-{number}"
            self.runners[name] = make_runner(head, self.pair.target)
        self.table = measure_table(self.pair.target, self.pair.drafters, TABLE_SECONDS, self.runners)
        self.policies: dict[str, DraftLengthPolicy] = {OFF: FixedLength(0)}

    @property
    def rows(self) -> dict[str, tuple[str, ...]]:
        """Return the sources of each row: each proposer alone, the chain without a head, and with each head."""
        alone = ["suffix", *self.runners, *self.pair.drafters]
        chains = {f"{CHAIN}+{head}": ("suffix", head, *self.pair.drafters) for head in self.runners}
        return {OFF: (), **{name: (name,) for name in alone}, CHAIN: ("suffix", *self.pair.drafters), **chains}

    def proposers(self, sources: Sequence[str], batch: int) -> TimedChain:
        """Return new proposers with these names, cheapest first."""
        usual = {part.name: part for part in self.pair.proposers(batch)}
        found: list[Proposer] = []
        for source in sources:
            if source in self.runners:
                head = make_proposer(self.runners[source])
                head.name = source
                found.append(head)
            else:
                found.append(usual[source])
        return TimedChain(found)

    def policy(self, row: str) -> DraftLengthPolicy:
        """Return a row's own policy, which has learned from the row's earlier prompts only."""
        if row not in self.policies:
            sources = self.rows[row]
            costs = with_sources(self.table, sources)
            longest = longest_draft(self.bench.config.draft_tokens, costs)
            self.policies[row] = CostPolicy(costs, sources, tokens=min(longest, LONGEST))
        return self.policies[row]

    def run(self, row: str, requests: Sequence[CompletionRequest], tally: Tally) -> None:
        """Decode a batch of prompts, with their prefill outside the timed part, and add it to the tally."""
        proposer = self.proposers(self.rows[row], len(requests))
        engine = Engine(
            self.pair.target,
            proposer if self.rows[row] else None,
            self.policy(row),
            context=self.pair.context,
            max_batch=len(requests),
            slots=max(self.bench.concurrency),
            warmup=0,
        )
        engine.complete([replace(request, max_tokens=0) for request in requests])
        proposer.drafts, proposer.seconds = 0, 0.0
        began = time.perf_counter()
        done = engine.complete(requests)
        tally.seconds.append(time.perf_counter() - began)
        book(done, proposer, tally)


def with_sources(table: CostTable, sources: Sequence[str]) -> CostTable:
    """Return the table of a chain with these sources only."""
    drafters = {name: cost for name, cost in table.drafters.items() if name in sources}
    return replace(table, drafters=drafters, whole=tuple(name for name in table.whole if name in sources))


def book(done: Sequence[Completion], proposer: TimedChain, tally: Tally) -> None:
    """Add a batch to a row's figures."""
    for completion in done:
        tally.stats.add(completion.stats)
        tally.texts.append(completion.token_ids)
    tally.tokens.append(sum(len(completion.token_ids) for completion in done))
    tally.drafts, tally.drafting = tally.drafts + proposer.drafts, tally.drafting + proposer.seconds


def run_proposer_bench(bench: ProposerBench) -> dict[str, Any]:
    """Return all figures as plain JSON values. Raise ConfigError if there are too few prompts for one batch."""
    sites, note = mixed_sites(bench.held_out, bench.prompts)
    if len(sites) < max(bench.concurrency):
        raise ConfigError(f"There are {len(sites)} prompts for {max(bench.concurrency)} at once: give more of them.")
    arena = Arena(bench)
    rows = []
    for at_once in bench.concurrency:
        rows += _measure(arena, sites[: max(at_once, bench.limit)], at_once)
    return {
        "processor": processor().label,
        "threads": torch.get_num_threads(),
        **arena.pair.facts(),
        "heads": {name: {"kind": r.config.kind, "block": r.config.block} for name, r in arena.runners.items()},
        "prompts": bench.limit,
        "tokens": bench.tokens,
        "note": note,
        "costs": arena.table.as_dict(),
        "rows": rows,
    }


def _measure(arena: Arena, sites: Sequence[Site], at_once: int) -> list[dict[str, Any]]:
    """Return the rows at one concurrency."""
    tallies = {row: Tally() for row in arena.rows}
    starts = range(0, len(sites) - at_once + 1, at_once)
    bar = ProgressBar(f"{at_once} at once", len(starts))
    for turn, start in enumerate(starts):
        requests = [site.request(arena.bench.tokens) for site in sites[start : start + at_once]]
        for row in in_turn(list(tallies), turn):
            arena.run(row, requests, tallies[row])
        bar.advance()
    return [_row(name, at_once, tally, tallies[OFF]) for name, tally in tallies.items()]


def _row(name: str, at_once: int, tally: Tally, off: Tally) -> dict[str, Any]:
    stats = tally.stats
    turns = zip(off.seconds, off.tokens, tally.seconds, tally.tokens, strict=True)
    times = [(plain / max(1, count)) / (seconds / max(1, tokens)) for plain, count, seconds, tokens in turns if tokens]
    return {
        "row": name,
        "at_once": at_once,
        "rounds": stats.rounds,
        "tokens": sum(tally.tokens),
        "accepted_a_round": stats.accepted / max(1, stats.rounds),
        "drafted_a_draft": stats.drafted / max(1, tally.drafts),
        "rate": stats.accepted / max(1, stats.drafted),
        "ms_a_draft": 1000 * tally.drafting / max(1, tally.drafts),
        "times_off": sum(off.seconds) / max(1e-9, sum(tally.seconds)),
        "median_times_off": median(times) if times else 0.0,
        "by_source": {source: counts.accepted for source, counts in stats.by_source.items()},
        "different": sum(mine != plain for mine, plain in zip(tally.texts, off.texts, strict=True)),
    }


def mismatches(found: Figures) -> list[str]:
    """List the rows in which a text differs from the one without drafts."""
    return [
        f"{row['row']}, {row['at_once']} at once: {row['different']} texts" for row in found["rows"] if row["different"]
    ]


def report(found: Figures) -> list[str]:
    """Return one line per proposer, with three columns for each concurrency."""
    counts = list(dict.fromkeys(row["at_once"] for row in found["rows"]))
    by_place = {(row["row"], row["at_once"]): row for row in found["rows"]}
    rows = [["", *(head for count in counts for head in (f"{count} at once: accepted", "ms a draft", "x off"))]]
    for name in dict.fromkeys(row["row"] for row in found["rows"]):
        rows.append([name, *(cell for count in counts for cell in _cells(by_place[name, count]))])
    heading = f"{found['target']['name']}, {found['prompts']} prompts, up to {found['tokens']} tokens each"
    return [heading, found["processor"], *([found["note"]] if found["note"] else []), *table(rows)]


def _cells(row: Mapping[str, Any]) -> list[str]:
    drafts = ["", ""] if row["row"] == OFF else [f"{row['accepted_a_round']:.2f}", f"{row['ms_a_draft']:.2f}"]
    return [*drafts, f"{row['times_off']:.2f}"]


SCENARIO = Scenario(run_proposer_bench, report, mismatches=mismatches)
