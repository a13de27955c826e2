"""Sequences and cost tables for tests of policies, without a model: ids are numbers, texts are empty."""

from __future__ import annotations

from codespec_grammars import ContextTracker

from codespec.api.types import CompletionRequest
from codespec.sequence import Candidates, Sequence, Verdict
from codespec.speculation.cost_model import CostTable, Curve, ForwardCost
from codespec.text.filters import StopFinder


def sequence(context: str = "unknown", language: str = "", length: int = 200, max_tokens: int = 64) -> Sequence:
    """Return a decoding sequence with room for a draft."""
    made = Sequence(
        request=CompletionRequest(prefix="x", max_tokens=max_tokens),
        choice=0,
        prompt_ids=list(range(length)),
        context=b"",
        held=b"",
        continues=True,
        eos_ids=frozenset(),
        stops=StopFinder(),
    )
    made.outlook.context, made.outlook.language = context, language
    made.outlook.tracker = ContextTracker("", b"")  # unused, because nothing is appended
    made.cached, made.feed, made.room = length - 1, 1, max_tokens - 1
    return made


def forward(base: float, row: float) -> ForwardCost:
    """Return a forward cost of `base` seconds plus `row` for each row after the first."""
    return ForwardCost((0,), (Curve((1, 2), (base, base + row)),))


def table(row: float = 0.1, unit: float | None = None) -> CostTable:
    """Return costs of a target (1 second plus `row` per further row) and a drafter (`unit` seconds per token)."""
    drafters = {} if unit is None else {"draft_model": forward(unit, unit / 20)}
    return CostTable(forward(1.0, row), drafters)


def drafted(source: str, count: int = 8, confidence: float = 0.9) -> Candidates:
    """Return a draft of `count` tokens."""
    return Candidates(tuple(range(count)), source, "draft ended", (confidence,) * count, count)


def verdict(candidates: Candidates, right: int) -> Verdict:
    """Return the verdict for a draft whose first `right` tokens, left-out ones included, are correct."""
    every = [*candidates.ids, *candidates.left_out]
    accepted = min(right, len(candidates.ids))
    bonus = every[accepted] if accepted < right else 999
    return Verdict(accepted, (*every[:accepted], bonus))


def grow(made: Sequence, judged: Verdict) -> None:
    """Apply a verdict to the sequence, as the engine does."""
    made.ids.extend(judged.committed)
    made.cached = len(made.ids) - 1
