"""Sequences and cost tables for tests of policies. Knows no model: ids are numbers, texts are empty."""

from __future__ import annotations

from codespec_grammars import ContextTracker

from codespec.sequence import Candidates, Sequence, Verdict
from codespec.speculation.cost_model import CostTable, Curve, ForwardCost
from codespec.text.streaming import StopFinder
from codespec.types import CompletionRequest


def sequence(context: str = "unknown", language: str = "", length: int = 200, max_tokens: int = 64) -> Sequence:
    """One that decodes, with room for a draft."""
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
    made.outlook.tracker = ContextTracker("", b"")  # nothing is appended, so it is never asked
    made.cached, made.feed, made.room = length - 1, 1, max_tokens - 1
    return made


def forward(base: float, row: float) -> ForwardCost:
    """`base` seconds and `row` for each row behind the first."""
    return ForwardCost((0,), (Curve((1, 2), (base, base + row)),))


def table(row: float = 0.1, unit: float | None = None) -> CostTable:
    """A target whose forward takes a second and `row` for each more; a drafter with `unit` seconds a token."""
    drafters = {} if unit is None else {"draft_model": forward(unit, unit / 20)}
    return CostTable(forward(1.0, row), drafters)


def drafted(source: str, count: int = 8, confidence: float = 0.9) -> Candidates:
    """A draft of so many tokens."""
    return Candidates(tuple(range(count)), source, "draft ended", (confidence,) * count, count)


def verdict(candidates: Candidates, right: int) -> Verdict:
    """What the target says if the first `right` of the whole draft are right."""
    every = [*candidates.ids, *candidates.left_out]
    accepted = min(right, len(candidates.ids))
    bonus = every[accepted] if accepted < right else 999
    return Verdict(accepted, (*every[:accepted], bonus))


def grow(made: Sequence, judged: Verdict) -> None:
    """What the engine does with a verdict."""
    made.ids.extend(judged.committed)
    made.cached = len(made.ids) - 1
