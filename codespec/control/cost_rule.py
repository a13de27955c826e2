"""The cost rule: a draft position is worth its time while the tokens it is expected to bring exceed the tokens that the
time would bring otherwise. Length 0 is always a candidate.

Decides twice: before drafting, whether and how far each proposer guesses (a lookup is cheap but may stand in a
drafter's way; a drafter costs a forward a token, and first what it has not read yet); after retokenization, which
positions of the whole batch are verified. Neither risks more than the drafts of a text may still lose (stake). Knows
survival, costs and lengths; knows no model and no text.
"""

from __future__ import annotations

import collections.abc
from dataclasses import replace
from functools import partial

from codespec.control import stake
from codespec.control.admit import admit
from codespec.control.costs import CostTable
from codespec.control.economy import Economy
from codespec.control.explain import explain
from codespec.control.looks import LEAST, SHARE, Looks
from codespec.control.step import Step, Steps, drafting
from codespec.control.survival import Place, Survival
from codespec.control.syntax import follow
from codespec.control.worth import Worth
from codespec.sequence import Candidates, Cap, Sequence, Verdict

UNITS = 1.2  # a drafter's tokens for one of the target's, until it is known
MEMORY = 0.98  # of that ratio, a draft
BUCKET = 64  # tokens of context that are taken for equally long
LOOKS = 32  # looks at the syntax, or rounds, over which a worth is averaged
DEAR_LOOK = 0.02  # of a plain round: syntax brought one per cent at most (bench/LOG.md), so such a look rarely pays
SEARCH = 3e-5  # seconds in which a lookup searches and weighs what it found, drafted or not (Python)
WEIGHING = 2e-5  # seconds in which it is weighed whether a drafter should draft for a text (Python)
SEARCHES, HOPE = 64, 1.0  # of these, over which their gain is averaged, and the tokens that are hoped for at first
SEARCHED = 0.005  # of the time goes into searches that bring nothing: a text may begin to repeat itself at any time
ANYWHERE: Place = ("", "")
NOTHING = Cap(0)
TYPICAL = 32.0  # target tokens of a completion, until they are known


class CostRule:
    """`sources` are the proposers' names, cheapest first; those in the cost table's `drafters` are paid by the unit."""

    def __init__(
        self,
        costs: CostTable,
        sources: collections.abc.Sequence[str],
        *,
        tokens: int = 16,
        syntax: bool = True,
        survival: Survival | None = None,
        keep: collections.abc.Callable[[Survival], None] | None = None,
    ) -> None:
        self.name = "cost+syntax" if syntax else "cost"
        self.follows_syntax = syntax
        self.costs = costs
        self.sources = tuple(sources)
        self.tokens = tokens
        self.survival = survival or Survival()
        self.economy = Economy()
        self._keep = keep
        self._units = dict.fromkeys(costs.drafters, UNITS)
        self._steps = Steps(costs, tokens)
        self._typical, self._turn = TYPICAL, 0
        self._worth: dict[str, float] = {}  # tokens a round that a drafter which has read the text would gain
        self._places: dict[Sequence, Place] = {}  # of this step
        self._gains: dict[tuple[str, Place, float], float] = {}  # of this step: texts without luck expect alike
        dear = costs.look > DEAR_LOOK * costs.plain(1, 0)
        self._looks = Looks(costs.look, LOOKS, share=LEAST if dear else SHARE)
        self._searches = Looks(SEARCH, SEARCHES, insight=HOPE, least=SEARCHED)
        self._searched: set[Sequence] = set()  # in this step
        self._weighings = Looks(WEIGHING, SEARCHES, insight=HOPE)
        self._step = self._survey([])

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """For each sequence a cap a proposer."""
        self._step = self._survey(sequences)
        self._places.clear()
        self._gains.clear()
        self._looks.step(self._step.plain)
        self._searches.step(self._step.plain)
        self._weighings.step(self._step.plain)
        self._turn = (self._turn + max(1, len(self._searched))) % max(1, len(sequences))  # so others come first
        self._searched.clear()
        order = [*sequences[self._turn :], *sequences[: self._turn]]
        found = {s: self._cap(s) if s.room and self._left(s) > 0.0 else NOTHING for s in order}
        return [found[s] for s in sequences]

    def trim(self, sequences: collections.abc.Sequence[Sequence], candidates: list[Candidates]) -> list[Candidates]:
        """The positions that pay, over the whole batch."""
        asked = {s: c for s, c in zip(sequences, candidates, strict=True) if c.source or s.listening}
        kept, extra = self._admit(asked) if asked else ({}, 0.0)
        if self._step.deciding:
            seconds, drafts = drafting(self.costs, asked.values(), self._step.context)
            self.economy.step(self._step.batch, self._step.plain, seconds + extra, drafts)
        return [kept.get(s, c) for s, c in zip(sequences, candidates, strict=True)]

    def _admit(self, asked: dict[Sequence, Candidates]) -> tuple[dict[Sequence, Candidates], float]:
        """What is verified of each draft, and the seconds that those rows cost."""
        step, most = self._step, [self._drafted(s, c) for s, c in asked.items()]
        survivals = [self._survivals(s, c)[:n] for (s, c), n in zip(asked.items(), most, strict=True)]
        lengths = admit(survivals, step.extra.__getitem__, step.price)
        extra = step.extra[sum(lengths)]
        for (sequence, found), length in zip(asked.items(), lengths, strict=True):
            sequence.outlook.lost += step.own_rounds(self._drafting(found) + length * extra / max(1, sum(lengths)))
        turns = zip(asked.items(), lengths, most, strict=True)
        return {s: self._cut(s, c, length, n) for (s, c), length, n in turns}, extra

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """Counts what was judged: the drafted tokens, and the first that was left out, by the target's next choice."""
        self.economy.earn(len(verdict.committed))
        if sequence in self._searched:
            self._searches.learn(self._gained(candidates, verdict.accepted))
        for source, gain in sequence.outlook.gains.items():
            gain = gain if candidates.source in ("", source) else 0.0  # a lookup stood in its way
            self._worth[source] = self._worth.get(source, gain) + (gain - self._worth.get(source, gain)) / LOOKS
        sequence.outlook.gains.clear()
        if sequence.finish_reason:
            self._typical += 0.1 * (sequence.num_generated - self._typical)
        if not candidates.source:
            return
        source, outlook = candidates.source, sequence.outlook
        accepted, judged = verdict.accepted, len(candidates.ids)
        if candidates.left_out and accepted == judged:
            accepted += candidates.left_out[0] == verdict.committed[accepted]
            judged += 1
        outlook.lost = stake.save(outlook.lost, accepted)
        confidences, luck = candidates.confidences[:judged], outlook.luck.get(source, 0.0)
        outlook.luck[source] = self.survival.learn(source, self._place(sequence), luck, confidences, accepted)
        outlook.read_by[source] = len(sequence.ids)
        if source in self._units:
            ratio = candidates.units / (len(candidates.ids) + len(candidates.left_out))
            self._units[source] = MEMORY * self._units[source] + (1.0 - MEMORY) * ratio

    def close(self) -> None:
        """Keeps what was learned."""
        if self._keep:
            self._keep(self.survival)

    def _survey(self, sequences: collections.abc.Sequence[Sequence]) -> Step:
        deciding = [s for s in sequences if s.feed == s.num_pending]
        batch, rows = max(1, len(deciding)), max(1, sum(s.feed for s in sequences))
        context = sum(len(s.ids) for s in deciding) // batch // BUCKET * BUCKET
        step, drafts = self._steps.of(rows, batch, context), self.economy.together(batch)
        price, spelling = self.economy.price(batch, step.plain), self.costs.spelling(drafts) / drafts
        return replace(step, deciding=bool(deciding), spelling=spelling, price=price)

    def _place(self, sequence: Sequence) -> Place:
        """Where the tip lies in this step, if finding out is worth it or within the budgets; the answer stays."""
        if sequence not in self._places:
            self._places[sequence] = self._look(sequence) if self.follows_syntax else ANYWHERE
        return self._places[sequence]

    def _look(self, sequence: Sequence) -> Place:
        outlook = sequence.outlook
        if self._left(sequence) <= 0.0 or not self._looks.allow(self._step.price):
            outlook.context = "unknown"
            return ANYWHERE
        outlook.lost += self._step.own_rounds(self.costs.look)
        follow([sequence])
        return outlook.context, outlook.language

    def _cap(self, sequence: Sequence) -> Cap:
        bar, own = 0.0, {}
        for source in reversed(self.sources):  # a drafter's worth is what a lookup must beat
            if source in self.costs.drafters:
                own[source], gain = self._drafter_cap(sequence, source)
                bar = max(bar, gain)
            elif self._searches.allow(self._step.price):
                self._searched.add(sequence)
                own[source] = Worth(self.tokens, pays=partial(self._pays_lookup, sequence, source, bar))
            else:
                own[source] = NOTHING
        if len(own) == 1:
            return own[self.sources[0]]
        return Cap(max((cap.tokens for cap in own.values()), default=self.tokens), by_source=own)

    def _pays_lookup(
        self, sequence: Sequence, source: str, bar: float, confidences: collections.abc.Sequence[float]
    ) -> bool:
        """Whether a text that was found beats what else could be done; else it is tried now and then, to learn."""
        luck, place = sequence.outlook.luck.get(source, 0.0), self._place(sequence)
        survivals = self.survival.survivals(source, place, luck, self.tokens, confidences)
        if self._step.gain(survivals) > bar:
            return True
        return bar == 0.0 and self.economy.explore(self.costs.spelling(1) / self._step.plain)

    def _gained(self, candidates: Candidates, accepted: int) -> float:
        """The tokens that a search for this text brought, beyond what its draft took; nothing if a drafter's stood."""
        if not candidates.source or candidates.source in self.costs.drafters:
            return 0.0
        return accepted - self._step.own_rounds(self._drafting(candidates) + len(candidates.ids) * self._step.row)

    def _drafter_cap(self, sequence: Sequence, source: str) -> tuple[Cap, float]:
        """A drafter's cap and the tokens it is expected to gain; one unit now and then where it gains none."""
        if not self._weighings.allow(self._step.price):
            return NOTHING, 0.0
        cap, gain = self._weigh(sequence, source)
        self._weighings.learn(gain)
        return cap, gain

    def _weigh(self, sequence: Sequence, source: str) -> tuple[Cap, float]:
        step, luck = self._step, sequence.outlook.luck.get(source, 0.0)
        if step.price * self._token_seconds(source) >= 1.0:  # what is surely right costs more than it brings
            return self._trial(sequence, source), 0.0
        place, gain = self._place(sequence), self._gain(source, ANYWHERE, luck)
        here = gain if place == ANYWHERE else self._gain(source, place, luck)
        sequence.outlook.gains[source] = max(0.0, here)
        owed = self._owed(sequence, source) if max(gain, here) > 0.0 else 0.0
        if place != ANYWHERE:
            blindly = here if gain > owed else 0.0  # what would have come of it without the look
            gained = (here if here > owed else 0.0) - blindly
            self._looks.learn(gained)
        most = self._affords(sequence, step.spelling, self._token_seconds(source)) if here > owed else 0
        if most:
            return Worth(most, pays=partial(self._pays_unit, source, place, luck)), here
        return self._trial(sequence, source), 0.0

    def _gain(self, source: str, place: Place, luck: float) -> float:
        """Tokens that a drafter which has read the text is expected to gain; the answer stays for the step."""
        key = source, place, luck
        if key not in self._gains:
            survivals = self.survival.survivals(source, place, luck, self.tokens)
            self._gains[key] = self._step.gain(survivals, self._token_seconds(source))
        return self._gains[key]

    def _trial(self, sequence: Sequence, source: str) -> Cap:
        """One unit, if that is affordable just to learn; else none."""
        step = self._step
        seconds = self.costs.drafters[source].seconds(1, 1, step.context) + self.costs.spelling(1)
        if not self.economy.affords(seconds / step.plain):
            return NOTHING
        seconds += self._reading_seconds(sequence, source)
        most = self._affords(sequence, step.spelling, self._token_seconds(source))
        return Cap(int(most > 0 and self.economy.explore(seconds / step.plain)))

    def _left(self, sequence: Sequence) -> float:
        """What the text may still lose, in plain rounds of its own."""
        return stake.left(sequence.outlook.lost, sequence.num_generated, self._step.handling)

    def _affords(self, sequence: Sequence, seconds: float, token: float = 0.0) -> int:
        """How many tokens a draft may risk that takes so many seconds, and `token` for each, beside its rows; one, if
        that is all that is left for.
        """
        step, text, beside = self._step, sequence.outlook, self._step.own_rounds(seconds)
        risk = stake.risk(text.lost, sequence.num_generated, step.handling)
        return step.affords(risk - beside, token) or min(1, step.affords(self._left(sequence) - beside, token))

    def _drafted(self, sequence: Sequence, candidates: Candidates) -> int:
        """How many rows of a draft may be risked; what a drafter's cap allowed is already a part of what is left."""
        if candidates.source in self.costs.drafters:
            return self._step.affords(self._left(sequence) - self._step.own_rounds(self._drafting(candidates)))
        return self._affords(sequence, self._drafting(candidates))

    def _drafting(self, candidates: Candidates) -> float:
        """One sequence's share of what its draft took. Reading the text is weighed before, not here."""
        source = candidates.source
        return self._step.spelling * bool(source) + candidates.units * self._step.forwards.get(source, 0.0)

    def _pays_unit(self, source: str, place: Place, luck: float, confidences: collections.abc.Sequence[float]) -> bool:
        """Whether one more target token is worth its drafting and its row, after these units."""
        step, done = self._step, len(confidences)
        so_far = self.survival.survivals(source, place, luck, done, confidences)[-1]
        following = self.survival.rate(source, place, round(done / self._units[source]))
        return so_far * following > step.price * (self._token_seconds(source) + step.row)

    def _token_seconds(self, source: str) -> float:
        """One sequence's share of the forwards that draft one of the target's tokens."""
        return self._units[source] * self._step.forwards[source]

    def _reading_seconds(self, sequence: Sequence, source: str) -> float:
        """What a drafter has to read before its first unit costs beyond that."""
        unread = len(sequence.ids) - sequence.outlook.read_by.get(source, 0) + 1
        cost = self.costs.drafters[source]
        return cost.seconds(unread, 1, self._step.context) - cost.seconds(1, 1, self._step.context)

    def _owed(self, sequence: Sequence, source: str) -> float:
        """The tokens that reading costs, beyond what a drafter which has read the text is expected to gain in the
        rounds behind this one.
        """
        coming = min(sequence.remaining, max(self._typical - sequence.num_generated, self._typical / 4))
        worth = self._worth.get(source, sequence.outlook.gains[source])
        later = worth * max(0.0, coming / 2 - 1.0)  # two tokens a round
        return max(0.0, self._step.price * self._reading_seconds(sequence, source) - later)

    def _survivals(self, sequence: Sequence, candidates: Candidates) -> list[float]:
        source, luck = candidates.source, sequence.outlook.luck.get(candidates.source, 0.0)
        place, count = self._place(sequence) if candidates.ids else ANYWHERE, len(candidates.ids)
        return self.survival.survivals(source, place, luck, count, candidates.confidences) if count else []

    def _cut(self, sequence: Sequence, candidates: Candidates, length: int, most: int) -> Candidates:
        reason = candidates.reason
        if sequence.listening:
            place = self._place(sequence)
            reason = explain(self.survival, self.sources, place, candidates, length, most)
        left_out = candidates.ids[length:]
        return replace(candidates, ids=candidates.ids[:length], left_out=left_out, reason=reason)
