"""Replay recorded answers through the real lookup of predictions: the tokens that a round would yield, without a model.

A replay asks the proposer for a draft, accepts the part of it that the recorded answer begins with, and one token of
the answer more, as a round does. The draft's width is fixed, so the figure depends on neither a machine nor a policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from codespec.api.types import CompletionRequest
from codespec.engine.round import commit, to_candidates
from codespec.proposers.base import Proposer
from codespec.sequence import Sequence, Verdict
from codespec.speculation.policy import lookup_cap
from codespec.text.filters import StopFinder
from codespec.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Replay:
    """What an answer took: its target tokens, the end token included, its rounds, and the drafted tokens."""

    tokens: int
    rounds: int
    drafted: int


def replay_answer(
    proposer: Proposer,
    tokenizer: TextTokenizer,
    request: CompletionRequest,
    answer: str,
    end: int,
    width: int = 16,
) -> Replay:
    """Replay one answer to a request with a `prediction`, in drafts of up to `width` tokens.

    `end` is the token that ended the answer. The proposer learns from the answer as from a completion, so the order of
    replays matters.
    """
    ids = [*tokenizer.spell([answer.encode()])[0], end]
    wanted, context = replace(request, max_tokens=len(ids)), request.prefix.encode()
    sequence = Sequence(wanted, 0, [end], context, b"", True, frozenset({end}), StopFinder())
    rounds = drafted = 0
    while sequence.finish_reason is None:
        caps = [lookup_cap(width)]
        drafts = proposer.propose([sequence], caps)
        candidates = to_candidates(tokenizer, [sequence], drafts, caps)[0]
        coming = ids[sequence.num_generated :]
        pairs = enumerate(zip(candidates.ids, coming, strict=False))
        accepted = next((n for n, (a, b) in pairs if a != b), min(len(candidates.ids), len(coming)))
        commit(sequence, candidates, Verdict(accepted, tuple(coming[: accepted + 1])), drafts[0], tokenizer.token_bytes)
        rounds, drafted = rounds + 1, drafted + len(candidates.ids)
    proposer.release(sequence, sequence.finish_reason)
    return Replay(len(ids), rounds, drafted)


def tokens_a_round(replays: Iterable[Replay]) -> float:
    """Return the tokens a round of several answers together."""
    done = list(replays)
    return sum(replay.tokens for replay in done) / max(1, sum(replay.rounds for replay in done))
