"""The rules of thumb that the cost rule is compared with. Knows lengths, contexts and verdicts; no costs."""

from __future__ import annotations

import collections.abc

from codespec.control.draft_length import FixedLength, blind_cap
from codespec.control.syntax import follow
from codespec.sequence import Candidates, Cap, Sequence, Verdict

MARKED = 10  # ds4-80: after a comment marker, and after a character that is often repeated
TRIGGERS = b"-=*"
ELSEWHERE = 3  # ds4-80 says nothing of the rest: a common fixed length


class PlusTwoMinusOne(FixedLength):
    """Two tokens longer after a draft that was right to its end, one shorter after any other; at least 1.

    (The heuristic of transformers' assisted generation. One length for all requests, as there.)
    """

    name = "plus2minus1"

    def __init__(self, tokens: int, begin: int = 5) -> None:
        super().__init__(min(begin, tokens))
        self._most = tokens

    def observe(self, sequence: Sequence, candidates: Candidates, verdict: Verdict) -> None:
        """Adapts the length."""
        if candidates.ids:
            change = 2 if verdict.accepted == len(candidates.ids) else -1
            self.cap = blind_cap(min(self._most, max(1, self.cap.tokens + change)))


class Ds4Table(FixedLength):
    """The table of ds4's issue 80, by what stands at the tip: in a comment 10, in free text 0, behind - = or * 10."""

    name = "ds4-80"
    follows_syntax = True

    def caps(self, sequences: collections.abc.Sequence[Sequence]) -> list[Cap]:
        """One number a sequence; ELSEWHERE where the table has none."""
        follow([sequence for sequence in sequences if sequence.room])
        return [blind_cap(min(self.cap.tokens, _tabled(sequence))) for sequence in sequences]


def _tabled(sequence: Sequence) -> int:
    if sequence.outlook.context == "free_text":
        return 0
    tip = (sequence.known or sequence.context)[-1:]
    return MARKED if sequence.outlook.context == "comment" or (tip and tip in TRIGGERS) else ELSEWHERE
