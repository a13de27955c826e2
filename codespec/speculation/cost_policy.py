"""The cost policy: a draft position is worth its time while the tokens that it is expected to bring exceed the tokens
that the time would bring otherwise. Length 0 is always a candidate.

It decides twice: before drafting, whether and how far each proposer guesses (a lookup is cheap but stands in a
drafter's way; a drafter costs a forward a token, and first what it has not read yet); after retokenization, which
positions of the whole batch are verified. Neither risks more than the text's loss budget. Knows expected acceptance,
costs and budgets; does not know models or texts.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from codespec.sequence import Candidates, Cap, Sequence, Verdict
from codespec.speculation.acceptance_model import ANYWHERE, AcceptanceModel
from codespec.speculation.budget import Losses, Throughput
from codespec.speculation.contexts import follow
from codespec.speculation.cost_model import CostTable, StepCosts, admit
from codespec.speculation.running_costs import RunningCosts

UNITS = 1.2  # a drafter's tokens for one of the target's, until it is known
MEMORY = 0.98  # of that ratio, a draft
NOTHING = Cap(0)


@dataclass(frozen=True, slots=True)
class AdaptiveCap(Cap):
    """A cap that asks `pays`, unit by unit, whether the confidences so far are worth going on from."""

    pays: Callable[[collections.abc.Sequence[float]], bool] = bool

    def goes_on(self, confidences: collections.abc.Sequence[float]) -> bool:
        """As `pays` decides."""
        return self.pays(confidences)


class CostPolicy:
    """`sources` are the proposers' names, cheapest first; those in the table's `drafters` are paid by the forward.
    Drafts have up to `tokens` tokens, those of the sources in `longer` as many as it says, while all of a step together
    have no more than the longest or `tokens` each. `keep` is given the acceptance model at the end. If costs
    are `running` they follow the rounds that really run, and `keep_costs` is given them at the end.
    """

    def __init__(
        self,
        costs: CostTable,
        sources: collections.abc.Sequence[str],
        *,
        tokens: int = 16,
        longer: Mapping[str, int] | None = None,
        syntax: bool = True,
        acceptance: AcceptanceModel | None = None,
        keep: Callable[[AcceptanceModel], None] | None = None,
        running: bool = False,
        keep_costs: Callable[[CostTable], None] | None = None,
    ) -> None:
        self.name = "cost+syntax" if syntax else "cost"
        self.follows_syntax = syntax
        self.costs: CostTable | None = costs
        self.acceptance = acceptance or AcceptanceModel()
        self._table, self._sources, self._tokens, self._keep = costs, tuple(sources), tokens, keep
        self._keep_costs, self._running = keep_costs, RunningCosts(costs) if running else None
        self._modelled = (0, 0.0, 0.0)  # rows of the step's verify; seconds of it, and of its drafts, by the table
        self._throughput, self._losses = Throughput(), Losses()
        self._longer = dict(longer or {})
        self._steps = StepCosts(costs, tokens, max(self._longer.values(), default=0))
        self._units = dict.fromkeys(costs.drafters, UNITS)
        self._step = self._steps.of(1, 1, 0, False, 1.0)

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """For each sequence a cap a proposer."""
        deciding = [s for s in sequences if s.feed == s.num_pending]
        batch, rows = max(1, len(deciding)), max(1, sum(s.feed for s in sequences))
        context = sum(len(s.ids) for s in deciding) / batch
        self._step = self._steps.of(rows, batch, context, bool(deciding), self._throughput.speedup)
        if self.follows_syntax:
            follow([s for s in sequences if s.room])
        return [self._cap(s) if s.room and self._left(s) > 0.0 else NOTHING for s in sequences]

    def trim(self, sequences: collections.abc.Sequence[Sequence], candidates: list[Candidates]) -> list[Candidates]:
        """The positions that pay, over the whole batch; every draft's cost is booked on its text."""
        step, drafted = self._step, [(s, c) for s, c in zip(sequences, candidates, strict=True) if c.source]
        most = [self._most_rows(s, c) for s, c in drafted]
        survivals = [self._survival(s, c, c.confidences)[:n] for (s, c), n in zip(drafted, most, strict=True)]
        lengths = admit(survivals, step.extra.__getitem__, step.price)
        extra = step.extra[sum(lengths)]
        for (sequence, found), length in zip(drafted, lengths, strict=True):
            seconds = self._drafting(sequence, found) + length * extra / max(1, sum(lengths))
            sequence.outlook.lost += step.rounds(seconds)
            self._losses.book(step.rounds(seconds))
        if step.deciding:
            spent = extra + sum(self._drafting(s, c) for s, c in drafted)
            self._throughput.step(step.batch, 1.0 + spent / step.plain)
        self._modelled = self._weighed(sequences, drafted, sum(lengths))
        kept = {s: self._cut(s, c, n, top) for (s, c), n, top in zip(drafted, lengths, most, strict=True)}
        return [kept.get(s) or self._cut(s, c, 0, 0) for s, c in zip(sequences, candidates, strict=True)]

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """Counts what was judged: the drafted tokens, and the first that was left out, by the target's next choice."""
        self._throughput.earn(len(verdict.committed))
        self._losses.written += len(verdict.committed)
        if not candidates.source:
            return
        source, outlook = candidates.source, sequence.outlook
        accepted, judged = verdict.accepted, len(candidates.ids)
        if candidates.left_out and accepted == judged:
            accepted += candidates.left_out[0] == verdict.committed[accepted]
            judged += 1
        outlook.lost -= accepted
        self._losses.book(-accepted)
        outlook.log_odds[source] = self.acceptance.learn(
            source,
            self._context(sequence),
            outlook.log_odds.get(source, 0.0),
            candidates.confidences[:judged],
            accepted,
        )
        outlook.read_by[source] = len(sequence.ids)
        if source in self._units:
            ratio = candidates.units / (len(candidates.ids) + len(candidates.left_out))
            self._units[source] = MEMORY * self._units[source] + (1.0 - MEMORY) * ratio

    def timed(self, drafting: float, verifying: float) -> None:
        """Costs follow what the last step took, if they are to."""
        rows, verify, draft = self._modelled
        if self._running and rows and self._running.took(rows, (verify, verifying), (draft, drafting)):
            self._table = self.costs = self._running.fitted()
            self._steps = StepCosts(self._table, self._tokens, self._steps.most)

    def close(self) -> None:
        """Keeps what was learned."""
        if self._keep:
            self._keep(self.acceptance)
        if self._running and self._keep_costs:
            self._keep_costs(self._running.fitted())

    def _weighed(
        self,
        sequences: collections.abc.Sequence[Sequence],
        drafted: collections.abc.Sequence[tuple[Sequence, Candidates]],
        positions: int,
    ) -> tuple[int, float, float]:
        """Rows and seconds of the step as the first table has them, whether prompts are read or not; for running costs
        only.
        """
        if self._running is None:
            return 0, 0.0, 0.0
        step, table, rows, draft = self._step, self._running.table, sum(s.feed for s in sequences) + positions, 0.0
        context = sum(s.cached + s.feed for s in sequences) / len(sequences)
        for sequence, found in drafted:
            if found.source in table.drafters:
                cost, forwards = table.drafters[found.source], 1 if found.source in table.whole else found.units
                draft += forwards * cost.seconds(step.batch, step.batch, step.context) / step.batch
                draft += self._reading(sequence, found.source, table)
        return rows, table.target.seconds(rows, len(sequences), context), draft

    def _cap(self, sequence: Sequence) -> Cap:
        own, bar = self._drafter_caps(sequence)
        for source in self._sources:  # what a drafter is expected to gain is what a lookup must beat
            if source not in self._table.drafters:
                pays = partial(self._lookup_pays, sequence, source, bar)
                own[source] = AdaptiveCap(self._longest(source), pays=pays)
        return Cap(max(cap.tokens for cap in own.values()), by_source=own)

    def _drafter_caps(self, sequence: Sequence) -> tuple[dict[str, Cap], float]:
        """Caps of all that are paid by the forward, and the most that one of them is expected to gain. Only the best
        drafts; another one now and then in its place, to learn.
        """
        found = {s: self._drafter_cap(sequence, s) for s in self._sources if s in self._table.drafters}
        own: dict[str, Cap] = {source: cap for source, (cap, _) in found.items()}
        best = max(found, key=lambda source: found[source][1], default="")
        for source, (_, gain) in found.items():
            if source != best and gain > 0.0:
                tried = self._begin_seconds(source) + self._token_seconds(source) + self._step.draft + self._step.row
                explores = self._throughput.explore(self._step.rounds(tried))
                own[source] = Cap(1) if explores else NOTHING
                own[best] = NOTHING if explores else own[best]
        return own, found[best][1] if found else 0.0

    def _lookup_pays(
        self, sequence: Sequence, source: str, bar: float, confidences: collections.abc.Sequence[float]
    ) -> bool:
        """Whether a text that was found beats what else could be done; else it is tried now and then, to learn."""
        if self._step.gain(self._expected(sequence, source, self._longest(source), confidences)) > bar:
            return True
        return bar == 0.0 and self._throughput.explore(self._step.rounds(self._step.draft))

    def _drafter_cap(self, sequence: Sequence, source: str) -> tuple[Cap, float]:
        """A drafter's cap and the tokens it is expected to gain; one token now and then where it gains none."""
        step, token, begin = self._step, self._token_seconds(source), self._begin_seconds(source)
        most = min(self._tokens, self._affords(sequence, step.draft + begin, token))
        gain = step.gain(self._expected(sequence, source, self._tokens), token, begin)
        coming = sequence.remaining / 4  # rounds of two tokens, in a text that ends half-way
        if most and gain > 0.0 and gain * coming > step.price * self._reading(sequence, source, self._table):
            return AdaptiveCap(most, pays=partial(self._unit_pays, sequence, source)), gain
        if most and self._throughput.explore(step.rounds(step.draft + begin + token + step.row)):
            return Cap(1), 0.0
        return NOTHING, 0.0

    def _unit_pays(self, sequence: Sequence, source: str, confidences: collections.abc.Sequence[float]) -> bool:
        """Whether one more target token is worth its drafting and its row, after these units."""
        done = len(confidences)
        so_far = self._expected(sequence, source, done, confidences)[-1]
        following = self.acceptance.rate(source, self._context(sequence), round(done / self._units[source]))
        return so_far * following > self._step.price * (self._token_seconds(source) + self._step.row)

    def _expected(
        self,
        sequence: Sequence,
        source: str,
        count: int,
        confidences: collections.abc.Sequence[float] | None = None,
    ) -> list[float]:
        log_odds = sequence.outlook.log_odds.get(source, 0.0)
        return self.acceptance.survival(source, self._context(sequence), log_odds, count, confidences)

    def _survival(
        self, sequence: Sequence, candidates: Candidates, confidences: collections.abc.Sequence[float]
    ) -> list[float]:
        count = len(candidates.ids)
        return self._expected(sequence, candidates.source, count, confidences) if count else []

    def _context(self, sequence: Sequence) -> str:
        return sequence.outlook.context if self.follows_syntax else ANYWHERE

    def _left(self, sequence: Sequence) -> float:
        return self._losses.of_text(sequence.outlook.lost, sequence.num_generated)

    def _affords(self, sequence: Sequence, seconds: float, token: float = 0.0) -> int:
        """How many tokens a draft may risk that takes so many seconds, and `token` for each, beside its rows."""
        return self._step.affords(self._left(sequence) - self._step.rounds(seconds), token)

    def _most_rows(self, sequence: Sequence, candidates: Candidates) -> int:
        """How many rows of a draft may be risked; of a drafter's, its cap has taken the risk already."""
        if candidates.source in self._table.drafters:
            seconds = self._step.draft + self._draft_seconds(candidates)
            return self._step.affords(self._left(sequence) - self._step.rounds(seconds))
        return self._affords(sequence, self._step.draft)

    def _drafting(self, sequence: Sequence, candidates: Candidates) -> float:
        """One sequence's share of what its draft took. Reading is booked like all else, but limits no first draft: a
        text with a long prompt would never have one.
        """
        source, seconds = candidates.source, self._step.draft
        if source in self._table.drafters:
            seconds += self._draft_seconds(candidates) + self._reading(sequence, source, self._table)
        return seconds

    def _longest(self, source: str) -> int:
        """The longest draft of a source in this step."""
        fitting = max(self._tokens, (len(self._step.extra) - 1) // self._step.batch)
        return min(fitting, self._longer.get(source, self._tokens))

    def _token_seconds(self, source: str) -> float:
        """One sequence's share of the forwards that draft one of the target's tokens."""
        return 0.0 if source in self._table.whole else self._units[source] * self._step.forwards[source]

    def _begin_seconds(self, source: str) -> float:
        """One sequence's share of a forward that makes a whole draft."""
        return self._step.forwards[source] if source in self._table.whole else 0.0

    def _draft_seconds(self, candidates: Candidates) -> float:
        """One sequence's share of the forwards that made a draft."""
        forwards = 1 if candidates.source in self._table.whole else candidates.units
        return forwards * self._step.forwards[candidates.source]

    def _reading(self, sequence: Sequence, source: str, table: CostTable) -> float:
        """What a drafter has to read before its first unit, beyond a forward of one row."""
        cost, unread = table.drafters[source], len(sequence.ids) - sequence.outlook.read_by.get(source, 0) + 1
        return cost.seconds(unread, 1, self._step.context) - cost.seconds(1, 1, self._step.context)

    def _cut(self, sequence: Sequence, candidates: Candidates, length: int, most: int) -> Candidates:
        reason = self._explain(sequence, candidates, length, most) if sequence.listening else candidates.reason
        left_out = candidates.ids[length:]
        return replace(candidates, ids=candidates.ids[:length], left_out=left_out, reason=reason)

    def _explain(self, sequence: Sequence, candidates: Candidates, length: int, most: int) -> str:
        """In one line: context, learned chance of the first token (n judgements), chosen length and why."""
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
