"""Draft policies decide how many tokens to draft in each step. A new policy is one class in a file of its own:

    # wide.py
    from codespec.speculation.policy import DraftPlan, DraftPolicy, lookup_cap

    class Wide(DraftPolicy):
        name = "wide"
        length = 8

        def plan(self, batch):  # before drafting: a cap for each text, in tokens
            return DraftPlan([lookup_cap(self.length) for _ in batch])

        def observe(self, results):  # after the target's verdicts
            accepted = [verdict.accepted for _, candidates, verdict in results.rounds if candidates.ids]
            if accepted:
                self.length = max(1, min(16, 2 + max(accepted)))

`codespec bench policy --policy-file wide.py` (from `pip install ./lab`) compares the new policy with the others on the
same recorded completions. A policy file must contain one policy class, whose constructor takes no arguments. To serve
with a new policy, add its name to `choose_policy` in `codespec.startup.tuning`. In exact mode, no text depends on the
policy, because the target verifies all drafts.

The texts of a batch are `codespec.sequence.Sequence` objects. A policy reads each sequence's `ids` (tokens), `context`
(bytes of the prompt), `known` (bytes after the prompt), `num_generated`, `room` (0: no draft in this step) and, after a
call of `follow_syntax()`, `outlook.context` (the syntax at the end of the text). `Cap(n)` limits a draft to n tokens;
`lookup_cap(n)` also refuses unlikely lookups. `trim` does not shorten sampled drafts, so a strict limit belongs in the
cap. The default policy is in `cost_policy`; this module contains two simpler policies: a fixed draft length, and a
table of draft lengths by syntax.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable
from dataclasses import dataclass

from codespec.sequence import Candidates, Cap, Sequence, Verdict

Batch = collections.abc.Sequence[Sequence]

LIKELY = 0.4  # lookup confidence for an 8-byte match: its first token is right in 6 of 10 cases (lab/LOG.md)
WARM_UP = 100  # tokens of context before which ds4-80 does not draft
MARKED = 10  # ds4-80's length in comments and after TRIGGERS
ELSEWHERE = 3  # our choice, because the table has no entry
TRIGGERS = b"-=*"


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A policy's plan for one step."""

    caps: list[Cap]  # one per sequence; the engine lowers each cap to the tokens that the request still needs
    # Shortens the drafts of the whole batch after retokenization and sets their `reason`; the default shortens none.
    trim: Callable[[list[Candidates]], list[Candidates]] = list


@dataclass(frozen=True, slots=True)
class StepResults:
    """The results of one step, after the commit."""

    rounds: list[tuple[Sequence, Candidates, Verdict]]  # of the verified sequences; candidates may be empty
    drafting: float = 0.0  # seconds, or 0 if not measured
    verifying: float = 0.0  # seconds, or 0 if not measured


class DraftPolicy:
    """Plans drafts and learns from their results. A subclass must define only `name` and `plan`."""

    name: str

    def plan(self, batch: Batch) -> DraftPlan:
        """Return the plan for a step of these sequences. Sequences without `room` may not draft in this step."""
        raise NotImplementedError

    def observe(self, results: StepResults) -> None:
        """Learn from the results of the last planned step."""

    def seconds(self, rows: float, batch: int = 1, context: float = 0) -> float:
        """Return a target's forward time in seconds (0: unknown); `context` is the sequences' mean length in tokens."""
        return 0.0

    def close(self) -> None:
        """Save the learned state if the settings ask for it."""


def lookup_cap(tokens: int) -> Cap:
    """Return a cap without lookups of short matches, which would cost more than they gain."""
    return Cap(tokens, by_source={"suffix": Cap(tokens, LIKELY)})


class FixedLength(DraftPolicy):
    """Drafts up to `tokens` target tokens in every step, and uses only likely lookups."""

    name = "fixed"

    def __init__(self, tokens: int) -> None:
        self.cap = lookup_cap(tokens)

    def plan(self, batch: Batch) -> DraftPlan:
        return DraftPlan([self.cap] * len(batch))


class Ds4Table(FixedLength):
    """A policy with the draft lengths by syntax from issue 80 of the ds4 project.

    The maximum is 10 tokens in a comment and after -, = or *, and 0 in free text and before WARM_UP tokens of context.
    """

    name = "ds4-80"

    def plan(self, batch: Batch) -> DraftPlan:
        """Return the table's cap for each sequence, or ELSEWHERE if the table has no entry."""
        return DraftPlan([lookup_cap(min(self.cap.tokens, _tabled(sequence))) for sequence in batch])


def _tabled(sequence: Sequence) -> int:
    sequence.follow_syntax()
    if sequence.outlook.context == "free_text" or len(sequence.ids) < WARM_UP:
        return 0
    tip = (sequence.known or sequence.context)[-1:]
    return MARKED if sequence.outlook.context == "comment" or (tip and tip in TRIGGERS) else ELSEWHERE
