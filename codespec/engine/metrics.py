"""Aggregate counts and timings of the engine over all requests.

The engine's thread updates the metrics. Any thread may take a `snapshot`, which blocks the engine only while a few
hundred numbers are copied.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

from codespec_grammars import find_language

from codespec.api.types import Stats
from codespec.sequence import Candidates, Sequence, Verdict

Key = tuple[str | int, ...]
NOBODY = "none"  # proposer label for rounds without a draft


@dataclass(slots=True)
class Metrics:
    """Totals since the engine was created: the seconds of all steps by phase, and the stats of all finished requests.

    `context_s`, the time spent on syntax tracking, is also counted in the other phases. If a step both prefills and
    decodes, the time of its forward pass is split between `prefill_s` and `verify_s` in proportion to the rows.
    `goodput_tokens` and `goodput_s` count steps without prefill for which the cost of plain decoding is known;
    `plain_s` is that cost.

    `tallies` counts rounds as they are committed, with these keys:
        ("drafts" | "draft_tokens" | "accepted_tokens", proposer, context, language)
        ("accepted_at", proposer, position)   positions count from 0
        ("length", proposer, draft tokens)
        ("rounds", "plain" | "full" | "partial" | "none").
    Proposers, contexts and languages come from fixed sets, so a request can't create new keys.
    """

    steps: int = 0
    context_s: float = 0.0
    draft_s: float = 0.0
    retokenize_s: float = 0.0
    prefill_s: float = 0.0
    verify_s: float = 0.0
    rest_s: float = 0.0
    committed: int = 0
    prefilled: int = 0
    goodput_tokens: int = 0
    goodput_s: float = 0.0
    plain_s: float = 0.0
    totals: Stats = field(default_factory=Stats)
    tallies: Counter[Key] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def count_step(self, record: RoundRecord) -> None:
        """Add one step."""
        with self.lock:
            self.steps += 1
            self.context_s += record.context
            self.draft_s += record.propose
            self.retokenize_s += record.retokenize
            self.prefill_s += record.verify * record.prompt_share
            self.verify_s += record.verify * (1.0 - record.prompt_share)
            self.rest_s += record.rest
            self.prefilled += record.prefilled
            if record.plain:
                self.goodput_tokens += record.tokens
                self.goodput_s += record.total
                self.plain_s += record.plain

    def count_round(self, sequence: Sequence, candidates: Candidates, taken: Verdict) -> None:
        """Count one sequence's verified round. `taken` is the part of the verdict that became text."""
        drafted, tallies = len(candidates.ids), self.tallies
        source = candidates.source if drafted else NOBODY
        place = (source, sequence.outlook.context, _language(sequence.request.language, sequence.request.path))
        with self.lock:
            self.committed += len(taken.committed)
            tallies["rounds", outcome(drafted, taken.accepted)] += 1
            tallies["length", source, drafted] += 1
            if drafted:
                tallies["drafts", *place] += 1
                tallies["draft_tokens", *place] += drafted
                tallies["accepted_tokens", *place] += taken.accepted
            for position in range(taken.accepted):
                tallies["accepted_at", source, position] += 1

    def count_end(self, stats: Stats) -> None:
        """Add the stats of one finished sequence."""
        with self.lock:
            self.totals.add(stats)

    def snapshot(self) -> Metrics:
        """Return a consistent copy."""
        with self.lock:
            totals = Stats()
            totals.add(self.totals)
            return replace(self, totals=totals, tallies=self.tallies.copy())


@lru_cache(maxsize=1024)
def _language(language: str, path: str) -> str:
    return find_language(language, path) or "unknown"


def outcome(drafted: int, accepted: int) -> str:
    """Return how much of a round's draft was accepted ("full", "partial" or "none"), or "plain" without a draft."""
    if not drafted:
        return "plain"
    if accepted == drafted:
        return "full"
    return "partial" if accepted else "none"


@dataclass(slots=True)
class RoundRecord:
    """The results of one round, and its timings in seconds by phase."""

    schedule: float = 0.0
    propose: float = 0.0
    retokenize: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    context: float = 0.0  # of syntax tracking, which is also included in the other phases
    prompt_share: float = 0.0  # share of prompt rows among the forward pass's rows
    prefilled: int = 0  # prompt rows
    tokens: int = 0  # committed tokens
    plain: float = 0.0  # time that plain decoding would have taken for the committed tokens, or 0 if unknown

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the duration of the `with` block to the time of a phase."""
        began = time.perf_counter()
        yield
        setattr(self, phase, getattr(self, phase) + time.perf_counter() - began)

    @property
    def rest(self) -> float:
        """Seconds spent outside drafting and the target's forward pass."""
        return self.schedule + self.commit

    @property
    def total(self) -> float:
        return self.propose + self.retokenize + self.verify + self.rest

    def add_to(self, stats: Stats, *, prompt: bool) -> None:
        """Add the times of the phases to one sequence's stats. If `prompt` is true, verification counts as prefill."""
        stats.draft_ms += self.propose * 1000
        stats.retokenize_ms += self.retokenize * 1000
        stats.other_ms += self.rest * 1000
        if prompt:
            stats.prefill_ms += self.verify * 1000
        else:
            stats.verify_ms += self.verify * 1000
