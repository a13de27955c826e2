"""Force a target to write a given text: its forwards and choices take their usual time, but the result is ignored."""

from __future__ import annotations

from collections.abc import Mapping

from codespec.sequence import Candidates
from codespec.verify.acceptance import View


class ForcedRule:
    """An acceptance rule that accepts the given text only.

    `choices` maps each byte offset after the prompt to the id that begins there; a candidate is accepted if it is that
    id. The rule reads the choices of all accepted rows as the matching rule does, so that it takes as long.
    """

    def __init__(self, choices: Mapping[int, int]) -> None:
        self._choices = choices

    def judge(self, candidates: Candidates, view: View) -> tuple[int, int]:
        """Return the number of leading candidates that match the given text, and the next id of the text."""
        for row, candidate in enumerate(candidates.ids):
            view.chosen(row)
            if candidate != self._choices[view.positions[row].offset]:
                return row, self._choices[view.positions[row].offset]
        last = len(candidates.ids)
        view.chosen(last)
        return last, self._choices[view.positions[last].offset]


def choices_of(ids: list[int], token_bytes: list[bytes], end: int) -> dict[int, int]:
    """Return each id by the offset at which it begins, and `end`, which ends the text, after the last one."""
    offset, choices = 0, {}
    for number in ids:
        choices[offset] = number
        offset += len(token_bytes[number])
    return {**choices, offset: end}
