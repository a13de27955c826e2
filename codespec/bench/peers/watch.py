"""A policy that is watched: what was drafted and accepted in each step. Knows rounds; knows no text and no cost."""

from __future__ import annotations

import collections.abc

from codespec.bench.peers.contest import Played, PlayedStep
from codespec.sequence import Candidates, Cap, Sequence, Verdict
from codespec.speculation.policy import DraftLengthPolicy


class Watch:
    """Another policy, whose steps are noted."""

    def __init__(self, policy: DraftLengthPolicy) -> None:
        self.name, self.follows_syntax, self.costs = policy.name, policy.follows_syntax, policy.costs
        self.policy = policy
        self.steps: list[PlayedStep] = []

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """The policy's; a step begins."""
        self.steps.append(PlayedStep(sum(len(sequence.ids) for sequence in sequences) / len(sequences)))
        return self.policy.caps(sequences)

    def trim(self, sequences: collections.abc.Sequence[Sequence], candidates: list[Candidates]) -> list[Candidates]:
        """The policy's."""
        return self.policy.trim(sequences, candidates)

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """The policy learns; the round is noted."""
        self.policy.observe(sequence, candidates, verdict)
        drafted = len(candidates.ids)
        source = candidates.source if drafted or candidates.units else ""
        self.steps[-1].rounds.append(Played(source, drafted, min(verdict.accepted, drafted), candidates.units))

    def close(self) -> None:
        """Nothing is kept."""
