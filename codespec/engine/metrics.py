"""What the engine did and where its time went: seconds and counts of all requests together, nothing of one request.

The engine's thread counts; any other thread may take a `snapshot`, which holds the engine up for as long as a copy of
some hundred numbers takes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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

    def count_step(self, record: RoundRecord) -> None:
        """Adds one step."""
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


@dataclass(slots=True)
class RoundRecord:
    """One round: seconds by phase, and what it gave.

    `context`, following the syntax, is part of the phases. `prompt_share` is the share of the forward's rows that
    prompts had, `prefilled` those rows; `tokens` were committed; `plain` is what plain decoding would have taken for
    them, 0 where that is not known.
    """

    schedule: float = 0.0
    propose: float = 0.0
    retokenize: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    context: float = 0.0
    prompt_share: float = 0.0
    prefilled: int = 0
    tokens: int = 0
    plain: float = 0.0

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Adds the time of the block to a phase."""
        began = time.perf_counter()
        yield
        setattr(self, phase, getattr(self, phase) + time.perf_counter() - began)

    @property
    def rest(self) -> float:
        """Seconds around drafts and forward."""
        return self.schedule + self.commit

    @property
    def total(self) -> float:
        """Seconds of the whole round."""
        return self.propose + self.retokenize + self.verify + self.rest

    def add_to(self, stats: Stats, *, prompt: bool) -> None:
        """Adds the phases to one sequence's stats; the forward as prefill where it read a `prompt`."""
        stats.draft_ms += self.propose * 1000
        stats.retokenize_ms += self.retokenize * 1000
        stats.other_ms += self.rest * 1000
        if prompt:
            stats.prefill_ms += self.verify * 1000
        else:
            stats.verify_ms += self.verify * 1000
