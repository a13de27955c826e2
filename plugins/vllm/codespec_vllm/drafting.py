"""One drafting step for vLLM's batch: match rows to requests, learn from the accepted tokens, and draft again."""

from __future__ import annotations

import collections.abc
import time
from collections.abc import Mapping
from dataclasses import replace

from codespec.engine.round import first_drafts, to_candidates
from codespec.proposers.base import Proposer
from codespec.sequence import Candidates, Sequence
from codespec.speculation.cost_model import ForwardCost
from codespec.speculation.policy import DraftPolicy, FixedLength, StepResults
from codespec.text.tokenizer import TextTokenizer
from codespec_vllm.parts import cost_policy
from codespec_vllm.rows import Ids, Row, Rows
from codespec_vllm.settings import Settings

PLAIN_STEPS = 4  # steps without drafts at the start, to measure the time of a step


class Drafting:
    """Drafts up to `tokens` target tokens for each row, while the row stays below `longest` tokens.

    `costs` has the costs of each drafter's forwards, by the drafter's name.
    """

    def __init__(
        self,
        settings: Settings,
        tokenizer: TextTokenizer,
        proposers: collections.abc.Sequence[Proposer],
        costs: Mapping[str, ForwardCost],
        tokens: int,
        longest: int,
    ) -> None:
        self.policy: DraftPolicy = FixedLength(tokens if settings.policy == "fixed" else 0)
        self._tokenizer, self._proposers, self._costs = tokenizer, proposers, costs
        self._tokens, self._longest, self._max_rows = tokens, longest, settings.max_rows
        self._rows = Rows(tokenizer, share=bool(settings.share))
        self._plain: list[tuple[int, float]] | None = [] if settings.policy == "cost" else None
        self._returned = self._drafted = 0.0  # time at which the last call returned, and the seconds it spent on drafts

    def step(self, batch: collections.abc.Sequence[Ids], fresh: collections.abc.Sequence[int]) -> list[list[int]]:
        """Return draft ids for each row of the batch. The last `fresh[i]` ids of row i are new since the last call."""
        began = time.perf_counter()
        if len(batch) > self._max_rows:
            self.forget()
            return [[] for _ in batch]
        following = self._rows.follow(batch, fresh)
        self._release(following.ended)
        whole = batch and self._returned and not following.ended and len(following.verdicts) == len(batch)
        seconds = began - self._returned if whole else 0.0  # of one step, without prefill and idle time
        rounds = [(row.sequence, row.candidates, verdict) for row, verdict in following.verdicts]
        self.policy.observe(StepResults(rounds, self._drafted if whole else 0.0, seconds))
        if whole:
            self._learn(len(batch), seconds)
        rows = [row for row in following.rows if row is not None]
        drafts = self._draft([row.sequence for row in rows]) if rows else []
        for row, found in zip(rows, drafts, strict=True):
            row.candidates = found
        self._returned = time.perf_counter()
        return [list(row.candidates.ids) if row is not None else [] for row in following.rows]

    def forget(self) -> None:
        """Forget all rows, and let the proposers free their slots."""
        self._release(self._rows.drop())
        self._returned = 0.0

    def _release(self, rows: list[Row]) -> None:
        for row in rows:
            for proposer in self._proposers:
                proposer.release(row.sequence, "stop")

    def _learn(self, rows: int, seconds: float) -> None:
        """Collect the duration of a step without drafts, and choose the policy after PLAIN_STEPS steps."""
        if self._plain is not None:
            self._plain.append((rows, seconds))
            if len(self._plain) == PLAIN_STEPS:
                sources = [proposer.name for proposer in self._proposers]
                self.policy = cost_policy(self._costs, sources, self._tokens, self._plain)
                self._plain = None

    def _draft(self, sequences: list[Sequence]) -> list[Candidates]:
        for sequence in sequences:
            sequence.room = max(0, min(self._tokens, self._longest - len(sequence.ids) - 1))
        plan = self.policy.plan(sequences)
        wanted = zip(sequences, plan.caps, strict=True)
        caps = [replace(cap, tokens=min(cap.tokens, sequence.room)) for sequence, cap in wanted]
        began = time.perf_counter()
        drafts = first_drafts(self._proposers, sequences, caps)
        self._drafted = time.perf_counter() - began
        return plan.trim(to_candidates(self._tokenizer, sequences, drafts, caps))
