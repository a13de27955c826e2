"""What the engine did and where its time went: seconds and counts of all requests together, nothing of one request.

The engine's thread counts; any other thread may take a `snapshot`, which holds the engine up for as long as a copy of
some hundred numbers takes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from codespec_grammars import find_language

from codespec.sequence import Candidates, Sequence, Verdict
from codespec.types import Stats

Key = tuple[str | int, ...]
NOBODY = "none"  # the proposer of a round without a draft


@dataclass(slots=True)
class Metrics:
    """Sums since the engine was made: seconds by phase, each step counted once, and all ended requests' counts.

    `context_s`, following the syntax, is part of the other phases. A step that reads prompts and decodes has its
    forward shared between `prefill_s` and `verify_s` by rows. `goodput_tokens` were written in `goodput_s` by steps
    that read no prompt and whose plain cost is known: `plain_s` by the cost table.

    `tallies` counts rounds as they are committed, under
        ("drafts" | "draft_tokens" | "accepted_tokens", proposer, context, language)
        ("accepted_at", proposer, position)   positions count from 0
        ("length", proposer, draft tokens)
        ("rounds", "plain" | "full" | "partial" | "none")
    where proposers, contexts and languages are our own names: a request can't make new ones.
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
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def busy_s(self) -> float:
        """Seconds spent in steps."""
        return self.draft_s + self.retokenize_s + self.prefill_s + self.verify_s + self.rest_s

    def count_step(self, laps: Laps) -> None:
        """Adds one step."""
        with self.lock:
            self.steps += 1
            self.context_s += laps.context
            self.draft_s += laps.draft
            self.retokenize_s += laps.retokenize
            self.prefill_s += laps.verify * laps.reading
            self.verify_s += laps.verify * (1.0 - laps.reading)
            self.rest_s += laps.rest
            self.prefilled += laps.prefilled
            if laps.plain:
                self.goodput_tokens += laps.tokens
                self.goodput_s += laps.total
                self.plain_s += laps.plain

    def count_round(self, sequence: Sequence, candidates: Candidates, taken: Verdict) -> None:
        """Adds one sequence's verified round; `taken` is what of the verdict became text."""
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
        """Adds one ended sequence."""
        with self.lock:
            self.totals.add(stats)

    def snapshot(self) -> Metrics:
        """A copy whose numbers belong together."""
        with self.lock:
            values = {name: getattr(self, name) for name in _NUMBERS}
            totals, tallies = Stats(), self.tallies.copy()
            totals.add(self.totals)
        return Metrics(**values, totals=totals, tallies=tallies)


_NUMBERS = tuple(name for name, kind in Metrics.__annotations__.items() if kind in ("int", "float"))


@lru_cache(maxsize=1024)
def _language(language: str, path: str) -> str:
    """One of the languages we know, or "unknown"."""
    return find_language(language, path) or "unknown"


def outcome(drafted: int, accepted: int) -> str:
    """What became of a round's draft; "plain" where there was none."""
    if not drafted:
        return "plain"
    if accepted == drafted:
        return "full"
    return "partial" if accepted else "none"


class Laps:
    """Stopwatch of one step: `split` returns the seconds since the last split.

    `reading` is the share of the forward's rows that prompts had, `prefilled` those rows; `tokens` were committed;
    `plain` is what plain decoding would have taken for them, 0 where that is not known.
    """

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.context = self.draft = self.retokenize = self.verify = self.rest = 0.0
        self.reading = self.plain = 0.0
        self.prefilled = self.tokens = 0

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.draft + self.retokenize + self.verify + self.rest

    def split(self) -> float:
        """Seconds since the last split (or the start)."""
        now = time.perf_counter()
        lap, self._last = now - self._last, now
        return lap
