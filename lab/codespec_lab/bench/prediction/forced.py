"""A target that is made to write a given text: its forwards and choices cost what they cost, but what it would have
said does not count. Knows ids and offsets; knows no texts and no models.
"""

from __future__ import annotations

from collections.abc import Mapping

from codespec.sequence import Candidates
from codespec.verify.acceptance import View


class ForcedRule:
    """`choices` has the id that stands at each offset, in bytes behind the prompt. A candidate stands where it is that
    id. All rows that stand are looked at as the rule of matching looks at them, so that it takes as long.
    """

    def __init__(self, choices: Mapping[int, int]) -> None:
        self._choices = choices

    def judge(self, candidates: Candidates, view: View) -> tuple[int, int]:
        """Candidates up to the first that is not the given text's id."""
        for row, candidate in enumerate(candidates.ids):
            view.chosen(row)
            if candidate != self._choices[view.positions[row].offset]:
                return row, self._choices[view.positions[row].offset]
        last = len(candidates.ids)
        view.chosen(last)
        return last, self._choices[view.positions[last].offset]


def choices_of(ids: list[int], token_bytes: list[bytes], end: int) -> dict[int, int]:
    """Each id by the offset where it begins; behind the last one `end`, which ends the text."""
    offset, choices = 0, {}
    for number in ids:
        choices[offset] = number
        offset += len(token_bytes[number])
    return {**choices, offset: end}
