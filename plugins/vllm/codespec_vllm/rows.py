"""Represent the rows of vLLM's batch as codespec's sequences.

vLLM passes the token ids of each row without a request id, and reorders rows between calls. The ids of a request only
grow, so a row belongs to the request whose ids are the longest prefix of the row's ids.
"""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from codespec.api.types import CompletionRequest
from codespec.sequence import Candidates, Sequence, Verdict
from codespec.text.filters import StopFinder
from codespec.text.fim_templates import FimMissing, find_template
from codespec.text.tokenizer import TextTokenizer

Ids = NDArray[np.integer]
EXPECTED = 64  # assumed number of remaining tokens of a request, because vLLM does not pass the limit
NONE = Candidates()


@dataclass(slots=True, eq=False)
class Row:
    """A request of vLLM: its ids and its draft at the last call, and its sequence."""

    ids: Ids
    sequence: Sequence
    candidates: Candidates = NONE

    def continues_in(self, ids: Ids) -> bool:
        """Return whether `ids` begin with this row's ids and are longer."""
        end = len(self.ids)
        return end < len(ids) and bool(ids[end - 1] == self.ids[-1]) and np.array_equal(ids[:end], self.ids)


@dataclass(slots=True)
class Following:
    """A call's rows (None: in prefill), the verdicts on the last call's drafts, and the requests that have ended."""

    rows: list[Row | None]
    verdicts: list[tuple[Row, Verdict]]
    ended: list[Row]


class Rows:
    """The requests of the last call. If `share` is true, drafts for a request may copy from other requests."""

    def __init__(self, tokenizer: TextTokenizer, *, share: bool = False) -> None:
        self._tokenizer, self._share = tokenizer, share
        found = find_template(tokenizer)
        self._template = None if isinstance(found, FimMissing) or found.order != "psm" else found
        self._rows: list[Row] = []
        self._count = 0

    def follow(self, batch: collections.abc.Sequence[Ids], fresh: collections.abc.Sequence[int]) -> Following:
        """Match the rows of a batch to the requests of the last call.

        The last `fresh[i]` ids of row i are new since the last call. A row without new ids is still in prefill.
        """
        free = list(self._rows)
        following = Following([None] * len(batch), [], free)
        for place in sorted(range(len(batch)), key=lambda place: -len(batch[place])):
            if not fresh[place]:
                continue
            ids = batch[place]
            row = max((row for row in free if row.continues_in(ids)), key=lambda row: len(row.ids), default=None)
            if row is None:
                following.rows[place] = self._begin(ids, fresh[place])
            else:
                free.remove(row)
                following.rows[place] = row
                following.verdicts.append((row, self._grow(row, ids)))
        self._rows = [row for row in following.rows if row is not None]
        return following

    def drop(self) -> list[Row]:
        """Remove all requests and return them."""
        rows, self._rows = self._rows, []
        return rows

    def _begin(self, ids: Ids, fresh: int) -> Row:
        prompt, self._count = [int(number) for number in ids[: len(ids) - fresh]], self._count + 1
        before, behind, continues = self._read(prompt)
        request = CompletionRequest(
            prefix=before.decode("utf-8", "replace"),
            suffix=behind.decode("utf-8", "replace"),
            scope="" if self._share else str(self._count),
        )
        row = Row(ids[: len(prompt)], Sequence(request, 0, prompt, before, b"", continues, frozenset(), StopFinder()))
        self._grow(row, ids)
        return row

    def _grow(self, row: Row, ids: Ids) -> Verdict:
        """Append the new ids to a row, and return the verdict on the row's last draft."""
        sequence, table = row.sequence, self._tokenizer.token_bytes
        new = tuple(int(number) for number in ids[len(row.ids) :])
        drafted = row.candidates.ids
        agreeing = takewhile(lambda pair: pair[0] == pair[1], zip(drafted, new[:-1], strict=False))
        accepted = sum(1 for _ in agreeing)  # the last new id is the target's own
        for number in new:
            spelled = (
                table[number] if number < len(table) else b""
            )  # ids beyond the tokenizer's vocabulary have no text
            sequence.ids.append(number)
            sequence.generated += spelled
        row.ids = ids.copy()  # vLLM reuses its array
        sequence.cached, sequence.feed = len(sequence.ids) - 1, 1
        sequence.request = replace(sequence.request, max_tokens=sequence.num_generated + EXPECTED)
        return Verdict(accepted, new)

    def _read(self, prompt: list[int]) -> tuple[bytes, bytes, bool]:
        """Return a prompt's text before and after the cursor, and whether the prompt ends at the cursor."""
        spelled, marks = self._tokenizer.decode_bytes, self._template
        if marks is not None and prompt[-1:] == [marks.middle_id] and {marks.prefix_id, marks.suffix_id} <= {*prompt}:
            begin, behind = prompt.index(marks.prefix_id), prompt.index(marks.suffix_id)
            if begin < behind:
                return spelled(prompt[:begin] + prompt[begin + 1 : behind]), spelled(prompt[behind + 1 : -1]), False
        return spelled(prompt, at_start=True), b"", True
