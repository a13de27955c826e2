"""How much of a drafter's guess the target accepts, by draft length and by the syntax at the cursor.

Greedy, the drafter alone, no stop for lack of confidence. Knows an engine's rounds; knows no model and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from codespec_grammars import ContextTracker

from codespec.engine.engine import Engine
from codespec.speculation.policy import FixedLength
from codespec.training.gaps import Gap
from codespec.training.progress import Steps
from codespec.training.rates import Table
from codespec.types import CompletionRequest, RoundEvent

LENGTHS = (2, 4, 8)
TOKENS = 48


@dataclass(slots=True)
class Acceptance:
    """Accepted draft tokens over rounds at one draft length, by row and by context class; the bonus is not counted."""

    by_row: Table = field(default_factory=Table)
    by_context: Table = field(default_factory=Table)


def draft_request(gap: Gap) -> CompletionRequest:
    """Goes on behind a gap's prefix, with drafts."""
    return CompletionRequest(prefix=gap.prefix, path=gap.path, max_tokens=TOKENS, speculate=True)


def acceptance(engine: Engine, gaps: Mapping[str, Sequence[Gap]], length: int, steps: Steps) -> Acceptance:
    """Completes behind each gap's prefix with drafts of up to `length` target tokens."""
    engine.policy = FixedLength(length)
    result = Acceptance()
    for row, found in gaps.items():
        for gap in found:
            _follow(engine, gap, length, row, result)
            steps.advance()
    return result


def _follow(engine: Engine, gap: Gap, length: int, row: str, result: Acceptance) -> None:
    """Counts the rounds of one completion that had room for a whole draft and its bonus token."""
    tracker = ContextTracker(gap.language, gap.before.encode())
    left = TOKENS
    for event in engine.stream(draft_request(gap)):
        if not isinstance(event, RoundEvent):
            continue
        if left > length:
            result.by_row.add(row, event.accepted)
            result.by_context.add(tracker.context().context.value, event.accepted)
        left -= event.accepted + 1
        tracker.advance((event.accepted_text + event.target_text).encode())
