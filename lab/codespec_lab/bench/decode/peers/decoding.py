"""Decode prompts with codespec's engine: select the steps to time, log a policy's rounds, and make wrong drafts."""

from __future__ import annotations

import collections.abc
import time

from codespec.engine.engine import Engine
from codespec.proposers.base import Proposer
from codespec.proposers.chain import ChainProposer
from codespec.sequence import Candidates, Cap, Draft, Sequence, Verdict
from codespec.speculation.policy import DraftLengthPolicy
from codespec_lab.bench.decode.contest import Answer, Round, StepRounds
from codespec_lab.bench.steps import WatchedPolicy

NEVER = b"\x01"  # one token of any byte-level vocabulary, absent from real text


class RoundLog(WatchedPolicy):
    """A policy whose rounds are logged step by step."""

    def __init__(self, policy: DraftLengthPolicy) -> None:
        super().__init__(policy)
        self.steps: list[StepRounds] = []

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """Begin a step and return the policy's caps."""
        self.steps.append(StepRounds(sum(len(sequence.ids) for sequence in sequences) / len(sequences)))
        return super().caps(sequences)

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """Pass the verdict to the policy and log the round."""
        super().observe(sequence, candidates, verdict)
        drafted = len(candidates.ids)
        source = candidates.source if drafted or candidates.units else ""
        self.steps[-1].rounds.append(Round(source, drafted, min(verdict.accepted, drafted), candidates.units))


class Spoiler(ChainProposer):
    """Makes a proposer's drafts wrong but keeps their length and confidence, to measure the cost of speculation on
    unpredictable text.

    Random words in a prompt would not work: a target copies them, so a lookup predicts them. Here the proposer does all
    its work, and its drafts are replaced by characters that never occur in real text.
    """

    name = "spoiler"

    def __init__(self, proposer: Proposer) -> None:
        super().__init__([proposer])

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Return wrong drafts with the same count and units."""
        drafts = super().propose(sequences, caps)
        return [spoil(draft, sequence.bytes_per_token()) for draft, sequence in zip(drafts, sequences, strict=True)]


def decode(engine: Engine, log: RoundLog, sequences: list[Sequence], count: int) -> Answer:
    """Run an engine until all sequences are finished.

    Only steps that write `count` texts and prefill no prompt count as decoding: a batch that empties towards the end
    does not represent one that is kept full.
    """
    whole, counted, tokens, steps = 0.0, 0.0, 0, []
    split = dict.fromkeys(_seconds(engine), 0.0)
    while not all(sequence.finish_reason for sequence in sequences):
        unread, written, before = _unread(sequences), _written(sequences), _seconds(engine)
        began = time.perf_counter()
        engine.step()
        taken = time.perf_counter() - began
        whole += taken
        if len(log.steps[-1].rounds) == count and _unread(sequences) == unread:
            counted += taken
            tokens += _written(sequences) - written
            steps.append(log.steps[-1])
            split = {name: split[name] + after - before[name] for name, after in _seconds(engine).items()}
    split["rest"] = counted - sum(split.values())
    rounds = [each for step in steps for each in step.rounds]
    return Answer(
        [tuple(sequence.ids[len(sequence.prompt_ids) :]) for sequence in sequences],
        whole,
        whole - counted,
        _written(sequences) - tokens,
        len(rounds),
        sum(each.drafted for each in rounds),
        sum(each.accepted for each in rounds),
        split,
        steps,
    )


def spoil(draft: Draft, bytes_per_token: float) -> Draft:
    """Return a draft of wrong tokens, one per unit; for a lookup, whose draft is one unit, about as many as it had."""
    units = len(draft.ends)
    if not units:
        return draft
    tokens = max(1, round(len(draft.text) / bytes_per_token)) if units == 1 else units
    ends = (tokens,) if units == 1 else tuple(range(1, units + 1))
    return Draft(NEVER * tokens, draft.source, ends, draft.confidences)


def _unread(sequences: list[Sequence]) -> int:
    """Return the number of sequences without a token yet."""
    return sum(not sequence.num_generated for sequence in sequences)


def _written(sequences: list[Sequence]) -> int:
    """Return the number of tokens written in all sequences."""
    return sum(sequence.num_generated for sequence in sequences)


def _seconds(engine: Engine) -> dict[str, float]:
    spent = engine.metrics
    return {"draft": spent.draft_s, "retokenize": spent.retokenize_s, "verify": spent.verify_s}
