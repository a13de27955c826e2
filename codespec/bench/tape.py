"""What a replay leaves behind: rounds and steps, and what each step was made of. Knows recordings; knows no seconds."""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass, field

from codespec.bench.recording import Recording
from codespec.sequence import Candidates, Cap, Sequence, Verdict
from codespec.speculation.policy import DraftLengthPolicy


@dataclass(frozen=True, slots=True)
class Round:
    """One sequence's share of a step: from how many written tokens it began and what came of it."""

    recording: Recording
    position: int
    source: str
    drafted: int
    accepted: int
    committed: int


@dataclass(slots=True)
class Step:
    """What a step was made of: target rows, sequences and their mean length, the drafter's forwards as (rows,
    sequences), retokenized drafts and its rounds. Reading prompts is left out for the target,
    which reads them under every policy, and counted for the drafter.
    """

    rows: int = 0
    batch: int = 0
    context: float = 0.0
    forwards: list[tuple[int, int]] = field(default_factory=list)
    drafts: int = 0
    rounds: list[Round] = field(default_factory=list)


@dataclass(slots=True)
class Tape:
    """The steps of a replay so far, the open one apart, and which recording each sequence follows."""

    steps: list[Step] = field(default_factory=list)
    open: Step = field(default_factory=Step)
    playing: dict[Sequence, Recording] = field(default_factory=dict)
    by_prompt: dict[tuple[int, ...], Recording] = field(default_factory=dict)


class Watched:
    """Another policy, whose rounds go on the tape."""

    def __init__(self, policy: DraftLengthPolicy, tape: Tape) -> None:
        self.name, self.follows_syntax, self.costs = policy.name, policy.follows_syntax, policy.costs
        self._policy = policy
        self._tape = tape
        self._begun: dict[Sequence, int] = {}

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """The policy's."""
        self._begun = {sequence: sequence.num_generated for sequence in sequences}
        return self._policy.caps(sequences)

    def trim(self, sequences: collections.abc.Sequence[Sequence], candidates: list[Candidates]) -> list[Candidates]:
        """The policy's."""
        return self._policy.trim(sequences, candidates)

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """The policy learns; the round is noted."""
        self._policy.observe(sequence, candidates, verdict)
        begun, drafted = self._begun[sequence], len(candidates.ids)
        committed = sequence.num_generated - begun
        source, accepted = candidates.source if drafted else "", min(verdict.accepted, committed)
        recording, step = self._tape.playing[sequence], self._tape.steps[-1]
        step.rounds.append(Round(recording, begun, source, drafted, accepted, committed))

    def close(self) -> None:
        """Nothing is kept."""
