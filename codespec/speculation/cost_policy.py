"""The default draft policy: draft a position only if it is likely to yield more tokens than plain decoding would.

Before drafting, the policy decides how many tokens each proposer may draft: a lookup is cheap but displaces a drafter's
draft, and a drafter costs a forward pass per token plus the prefill of unread text. After retokenization, the policy
decides which positions of the whole batch to verify. No decision risks more than the loss budget of a text.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from codespec.sequence import Candidates, Cap, Sequence, Verdict
from codespec.speculation.acceptance_model import ANYWHERE, AcceptanceModel
from codespec.speculation.cost_model import CostTable, RunningCosts, StepCost, best_lengths
from codespec.speculation.policy import Batch, DraftPlan, DraftPolicy, StepResults

UNITS = 1.2  # initial estimate of drafter tokens per target token
MEMORY = 0.98  # decay of that ratio per draft, and of the speedup estimate per step
# Limits on losses, in plain rounds: the tabulated time of a step without drafts, divided by its sequences. No measured
# time enters, so that identical rounds lead to identical decisions on busy and idle machines.
BUDGET = 8.0  # rounds that all drafts together may lose
SHARE = 0.01  # plus this many rounds per generated token
TEXT, TEXT_SHARE = 2.0, 0.05  # the same limits for one text
EXPLORE = 0.003  # share of time for drafts that are not expected to pay
MAX_CREDIT = 64.0  # rounds of exploration that may be saved up
BEGIN = 16.0  # plain steps with which the speedup estimate starts
BUCKET = 64  # context tokens; lengths in a bucket share their cached costs
MAX_KNOWN = 512  # cached step costs
NOTHING = Cap(0)


@dataclass(frozen=True, slots=True)
class AdaptiveCap(Cap):
    """A cap that stops drafting when `pays`, called with the confidences after each unit, returns False."""

    pays: Callable[[collections.abc.Sequence[float]], bool] = bool

    def goes_on(self, confidences: collections.abc.Sequence[float]) -> bool:
        return self.pays(confidences)


@dataclass(slots=True)
class Losses:
    """The losses of all drafts. Gains of one text offset losses of other texts, up to BUDGET rounds."""

    lost: float = 0.0  # the cost of all drafts in rounds, minus the number of accepted tokens
    written: int = 0  # generated tokens

    @property
    def left(self) -> float:
        """The number of rounds that the drafts of all texts together may still lose."""
        return BUDGET + SHARE * self.written - self.lost

    def book(self, rounds: float) -> None:
        """Add a loss in rounds; a negative number is a gain."""
        self.lost = max(SHARE * self.written - BUDGET, self.lost + rounds)

    def of_text(self, lost: float, written: int) -> float:
        """Return the rounds that a text of `written` tokens may still lose if it has already lost `lost` rounds."""
        return min(self.left, TEXT + TEXT_SHARE * written - lost)


@dataclass(slots=True)
class Throughput:
    """Tokens and tabulated time of recent steps, and the credit for exploration, which grows with that time."""

    _earned: float = BEGIN
    _spent: float = BEGIN
    _credit: float = 0.0
    _batch: int = 1

    @property
    def speedup(self) -> float:
        """Tokens per second relative to plain decoding: at least 1, because drafting can always be skipped."""
        return max(1.0, self._earned / self._spent)

    def step(self, batch: int, cost: float) -> None:
        """Record a step of `batch` sequences that cost as much as `cost` plain steps."""
        self._batch = batch
        self._earned *= MEMORY
        self._spent = MEMORY * self._spent + cost
        self._credit = min(MAX_CREDIT, self._credit + EXPLORE * cost * batch)

    def earn(self, tokens: int) -> None:
        """Record the number of tokens that one sequence of the step committed."""
        self._earned += tokens / self._batch

    def explore(self, rounds: float) -> bool:
        """Deduct the rounds of an experiment from the exploration credit, or return False if the credit is too low."""
        if rounds > self._credit:
            return False
        self._credit -= rounds
        return True


class CostPolicy(DraftPolicy):
    """Draft policy based on a cost table and learned acceptance."""

    def __init__(
        self,
        costs: CostTable,
        sources: collections.abc.Sequence[str],  # the proposers' names, cheapest first
        *,
        tokens: int = 16,  # maximum draft length
        longer: Mapping[str, int] | None = None,  # maximum draft length of some proposers
        syntax: bool = True,  # whether acceptance is learned separately for each syntax context
        acceptance: AcceptanceModel | None = None,
        keep: Callable[[AcceptanceModel], None] | None = None,  # called by `close`
        running: bool = False,  # whether costs are adjusted to measured round times
        keep_costs: Callable[[CostTable], None] | None = None,  # called by `close` if `running`
    ) -> None:
        self.name = "cost+syntax" if syntax else "cost"
        self.acceptance = acceptance or AcceptanceModel()
        self._syntax, self._table, self._sources = syntax, costs, tuple(sources)
        self._tokens, self._keep = tokens, keep
        self._keep_costs, self._running = keep_costs, RunningCosts(costs) if running else None
        self._modelled = (0, 0.0, 0.0)  # the step's rows, and tabulated seconds for verifying and for drafting
        self._throughput, self._losses = Throughput(), Losses()
        self._longer = dict(longer or {})
        self._units = dict.fromkeys(costs.drafters, UNITS)
        self._steps: dict[tuple[int, int, int], StepCost] = {}  # by rows, batch and context
        self._step = self._price(1, 1, 0)

    def plan(self, batch: Batch) -> DraftPlan:
        deciding = [s for s in batch if s.feed == s.num_pending]
        count, rows = max(1, len(deciding)), max(1, sum(s.feed for s in batch))
        context = sum(len(s.ids) for s in deciding) / count
        self._step = self._price(rows, count, context)
        if self._syntax:
            for sequence in batch:
                if sequence.room:
                    sequence.follow_syntax()
        caps = [self._cap(s) if s.room and self._left(s) > 0.0 else NOTHING for s in batch]
        return DraftPlan(caps, partial(self._trim, batch))

    def seconds(self, rows: float, batch: int = 1, context: float = 0) -> float:
        """Return the seconds of a target's forward pass according to the current cost table."""
        return self._table.target.seconds(rows, batch, context)

    def _trim(self, sequences: Batch, candidates: list[Candidates]) -> list[Candidates]:
        """Keep the positions worth verifying in the whole batch, and charge each draft to its text's loss budget."""
        step, drafted = self._step, [(s, c) for s, c in zip(sequences, candidates, strict=True) if c.source]
        most = [self._affords(s, step.draft + self._draft_seconds(c)) for s, c in drafted]
        expected = [self._expected(s, c.source, len(c.ids), c.confidences) for s, c in drafted]
        survivals = [chances[:n] for chances, n in zip(expected, most, strict=True)]
        lengths = best_lengths(survivals, step.extra.__getitem__, step.price)
        extra, drafting = step.extra[sum(lengths)], [self._drafting(s, c) for s, c in drafted]
        for (sequence, _), length, seconds in zip(drafted, lengths, drafting, strict=True):
            rounds = step.rounds(seconds + length * extra / max(1, sum(lengths)))
            sequence.outlook.lost += rounds
            self._losses.book(rounds)
        if any(s.feed == s.num_pending for s in sequences):  # prefill earns no tokens
            self._throughput.step(step.batch, 1.0 + (extra + sum(drafting)) / step.plain)
        if self._running:
            forwards = sum(drafting) - len(drafting) * step.draft
            self._modelled = _weighed(self._running, sequences, sum(lengths), forwards)
        kept = {s: self._cut(s, c, n, top) for (s, c), n, top in zip(drafted, lengths, most, strict=True)}
        return [kept.get(s) or self._cut(s, c, 0, 0) for s, c in zip(sequences, candidates, strict=True)]

    def observe(self, results: StepResults) -> None:
        """Learn from the verified tokens, and update the running costs with the step's times, if enabled."""
        for sequence, candidates, verdict in results.rounds:
            self._throughput.earn(len(verdict.committed))
            self._losses.written += len(verdict.committed)
            if candidates.source:
                self._learn(sequence, candidates, verdict)
        rows, verify, draft = self._modelled
        times = (verify, results.verifying), (draft, results.drafting)
        if self._running and rows and results.verifying and self._running.took(rows, *times):
            self._refit(self._running)

    def _learn(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """Learn from a draft, and from the first trimmed token if the target's next token confirms or refutes it."""
        source = candidates.source
        accepted, judged = verdict.accepted, len(candidates.ids)
        if candidates.left_out and accepted == judged:
            accepted += candidates.left_out[0] == verdict.committed[accepted]
            judged += 1
        sequence.outlook.lost -= accepted
        self._losses.book(-accepted)
        self.acceptance.learn(source, self._context(sequence), candidates.confidences[:judged], accepted)
        sequence.outlook.read_by[source] = len(sequence.ids)
        if source in self._units:
            ratio = candidates.units / (len(candidates.ids) + len(candidates.left_out))
            self._units[source] = MEMORY * self._units[source] + (1.0 - MEMORY) * ratio

    def close(self) -> None:
        if self._keep:
            self._keep(self.acceptance)
        if self._running and self._keep_costs:
            self._refit(self._running)
            self._keep_costs(self._table)

    def _refit(self, costs: RunningCosts) -> None:
        self._table = costs.fitted()
        self._steps.clear()

    def _price(self, rows: int, batch: int, context: float) -> StepCost:
        """Return the costs of a step that has `rows` rows from `batch` sequences without drafts."""
        key = rows, batch, int(context) // BUCKET * BUCKET
        if key not in self._steps:
            if len(self._steps) >= MAX_KNOWN:
                self._steps.clear()
            longest = max([batch * self._tokens, *self._longer.values()])
            self._steps[key] = self._table.step(*key, longest)
        found = self._steps[key]
        return replace(found, price=self._throughput.speedup * batch / found.plain)

    def _cap(self, sequence: Sequence) -> Cap:
        own, bar = self._drafter_caps(sequence)
        for source in self._sources:  # a lookup must beat the drafters' expected gain
            if source not in self._table.drafters:
                pays = partial(self._lookup_pays, sequence, source, bar)
                own[source] = AdaptiveCap(self._longest(source), pays=pays)
        return Cap(max(cap.tokens for cap in own.values()), by_source=own)

    def _drafter_caps(self, sequence: Sequence) -> tuple[dict[str, Cap], float]:
        """Return maximum draft lengths, which are 0 for all but one drafter, and the largest expected gain."""
        found = {s: self._drafter_cap(sequence, s) for s in self._sources if s in self._table.drafters}
        own: dict[str, Cap] = {source: cap for source, (cap, _) in found.items()}
        best = max(found, key=lambda source: found[source][1], default="")
        for source, (_, gain) in found.items():
            if source != best and gain > 0.0:
                explores = self._tries(source)
                own[source] = Cap(1) if explores else NOTHING
                own[best] = NOTHING if explores else own[best]
        return own, found[best][1] if found else 0.0

    def _lookup_pays(
        self, sequence: Sequence, source: str, bar: float, confidences: collections.abc.Sequence[float]
    ) -> bool:
        """Return whether a lookup is expected to gain more than `bar` tokens, or is to be tried for exploration."""
        if self._step.gain(self._expected(sequence, source, self._longest(source), confidences)) > bar:
            return True
        return bar == 0.0 and self._throughput.explore(self._step.rounds(self._step.draft))

    def _drafter_cap(self, sequence: Sequence, source: str) -> tuple[Cap, float]:
        """Return a drafter's cap and expected gain in tokens. If no gain is expected, the cap is 0 (1 to explore)."""
        step, (begin, token) = self._step, self._forward_seconds(source)
        most = min(self._tokens, self._affords(sequence, step.draft + begin, token))
        gain = step.gain(self._expected(sequence, source, self._tokens), token, begin)
        coming = sequence.remaining / 4  # rounds, if half of the remaining tokens come two per round
        if most and gain > 0.0 and gain * coming > step.price * self._reading(sequence, source):
            return AdaptiveCap(most, pays=partial(self._unit_pays, sequence, source)), gain
        return Cap(1) if most and self._tries(source) else NOTHING, 0.0

    def _tries(self, source: str) -> bool:
        step = self._step
        return self._throughput.explore(step.rounds(step.draft + sum(self._forward_seconds(source)) + step.row))

    def _unit_pays(self, sequence: Sequence, source: str, confidences: collections.abc.Sequence[float]) -> bool:
        """Return whether one more target token after these units is worth the time to draft and verify it."""
        done = len(confidences)
        so_far = self._expected(sequence, source, done, confidences)[-1]
        following = self.acceptance.rate(source, self._context(sequence), round(done / self._units[source]))
        return so_far * following > self._step.price * (self._forward_seconds(source)[1] + self._step.row)

    def _expected(
        self, sequence: Sequence, source: str, count: int, confidences: collections.abc.Sequence[float] | None = None
    ) -> list[float]:
        return self.acceptance.survival(source, self._context(sequence), count, confidences)

    def _context(self, sequence: Sequence) -> str:
        return sequence.outlook.context if self._syntax else ANYWHERE

    def _left(self, sequence: Sequence) -> float:
        return self._losses.of_text(sequence.outlook.lost, sequence.num_generated)

    def _affords(self, sequence: Sequence, seconds: float, token: float = 0.0) -> int:
        """Return how many tokens the loss budget allows for a draft of `seconds` plus `token` seconds per token."""
        return self._step.affords(self._left(sequence) - self._step.rounds(seconds), token)

    def _drafting(self, sequence: Sequence, candidates: Candidates) -> float:
        """Return one sequence's share of the drafting time in seconds.

        The time of the drafter's prefill is included but does not limit the first draft, because a text with a long
        prompt would otherwise never get a draft.
        """
        return self._step.draft + self._draft_seconds(candidates) + self._reading(sequence, candidates.source)

    def _longest(self, source: str) -> int:
        fitting = max(self._tokens, (len(self._step.extra) - 1) // self._step.batch)
        return min(fitting, self._longer.get(source, self._tokens))

    def _forward_seconds(self, source: str) -> tuple[float, float]:
        """Return one sequence's share of a drafter's forward passes in seconds: per draft, and per target token."""
        share = self._step.forwards[source]
        return (share, 0.0) if source in self._table.whole else (0.0, self._units[source] * share)

    def _draft_seconds(self, candidates: Candidates) -> float:
        """Return one sequence's share of the forward passes for a draft, in seconds."""
        forwards = 1 if candidates.source in self._table.whole else candidates.units
        return forwards * self._step.forwards.get(candidates.source, 0.0)

    def _reading(self, sequence: Sequence, source: str) -> float:
        """Return the extra seconds of a drafter's first forward pass, which also processes unread text."""
        cost = self._table.drafters.get(source)
        if cost is None:
            return 0.0
        unread = len(sequence.ids) - sequence.outlook.read_by.get(source, sequence.stats.cached_tokens) + 1
        return cost.seconds(unread, 1, self._step.context) - cost.seconds(1, 1, self._step.context)

    def _cut(self, sequence: Sequence, candidates: Candidates, length: int, most: int) -> Candidates:
        reason = self._explain(sequence, candidates, length, most) if sequence.listening else candidates.reason
        left_out = candidates.ids[length:]
        return replace(candidates, ids=candidates.ids[:length], left_out=left_out, reason=reason)

    def _explain(self, sequence: Sequence, candidates: Candidates, length: int, most: int) -> str:
        """Return a line with the context, the first token's learned probability, the draft length and its reason."""
        source, context = candidates.source or self._sources[-1], self._context(sequence)
        if not candidates.source:
            why = "nothing found, and drafting does not pay"
        elif length == len(candidates.ids):
            why = candidates.reason
        elif length >= most:
            why = "a longer one would risk more than drafts of this text may lose"
        else:
            why = "the next row does not pay" if length else "not even one row pays"
        chance, seen = self.acceptance.rate(source, context, 0), self.acceptance.seen(source, context)
        return f"{context or 'any context'}: {source} {chance:.2f} (n={seen:.0f}) → {length}; {why}"


def _weighed(
    costs: RunningCosts, sequences: collections.abc.Sequence[Sequence], positions: int, forwards: float
) -> tuple[int, float, float]:
    """Return the step's rows, and the initial table's seconds for verification and for the drafters' forward passes."""
    rows = sum(s.feed for s in sequences) + positions
    context = sum(s.cached + s.feed for s in sequences) / len(sequences)
    return rows, costs.table.target.seconds(rows, len(sequences), context), forwards / costs.drafting
