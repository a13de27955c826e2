"""codespec's engine decodes some prompts: the steps that count, a policy that is watched, and drafts that are wrong on
purpose. Knows engines, steps, drafts and seconds; knows no model.
"""

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

NEVER = b"\x01"  # one token of any byte-level vocabulary, and in no text


class RoundLog(WatchedPolicy):
    """A policy whose rounds are logged step by step."""

    def __init__(self, policy: DraftLengthPolicy) -> None:
        super().__init__(policy)
        self.steps: list[StepRounds] = []

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """The policy's caps; a step begins."""
        self.steps.append(StepRounds(sum(len(sequence.ids) for sequence in sequences) / len(sequences)))
        return super().caps(sequences)

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """The policy learns, and the round is logged."""
        super().observe(sequence, candidates, verdict)
        drafted = len(candidates.ids)
        source = candidates.source if drafted or candidates.units else ""
        self.steps[-1].rounds.append(Round(source, drafted, min(verdict.accepted, drafted), candidates.units))


class Spoiler(ChainProposer):
    """Another proposer's drafts made wrong, as long and as confident as before: what speculation costs where nothing
    can be predicted.

    Random words in a prompt would not do: a target copies them, and so a lookup predicts them. Here the proposer does
    all its work, and its drafts are replaced by characters that nobody writes.
    """

    name = "spoiler"

    def __init__(self, proposer: Proposer) -> None:
        super().__init__([proposer])

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Wrong drafts, as many and of as many units."""
        drafts = super().propose(sequences, caps)
        return [spoil(draft, sequence.bytes_per_token()) for draft, sequence in zip(drafts, sequences, strict=True)]


def decode(engine: Engine, log: RoundLog, sequences: list[Sequence], count: int) -> Answer:
    """Runs an engine until all sequences are finished. Decoding are the steps in which `count` texts are written and no
    prompt is read: a batch that empties towards the end says nothing about one that is kept full.
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
    """A draft of wrong tokens, one for each unit; for a lookup, whose draft is one unit, about as many as it had."""
    units = len(draft.ends)
    if not units:
        return draft
    tokens = max(1, round(len(draft.text) / bytes_per_token)) if units == 1 else units
    ends = (tokens,) if units == 1 else tuple(range(1, units + 1))
    return Draft(NEVER * tokens, draft.source, ends, draft.confidences)


def _unread(sequences: list[Sequence]) -> int:
    """How many sequences have no token yet."""
    return sum(not sequence.num_generated for sequence in sequences)


def _written(sequences: list[Sequence]) -> int:
    """Tokens written in all sequences."""
    return sum(sequence.num_generated for sequence in sequences)


def _seconds(engine: Engine) -> dict[str, float]:
    spent = engine.metrics
    return {"draft": spent.draft_s, "retokenize": spent.retokenize_s, "verify": spent.verify_s}
