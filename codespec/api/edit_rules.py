"""Rules for edits that nobody wants to see, whoever shows them: white space alone, and taking back a change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NEAR_ROWS = 3  # a revert may stand this far from the change
Lines = Sequence[str]


def changes_white_space(old: Lines, new: Lines) -> bool:
    """Return whether two texts differ in nothing but blank lines and white space at line ends."""
    return [line.rstrip() for line in old if line.strip()] == [line.rstrip() for line in new if line.strip()]


def is_revert(start_row: int, old: Lines, new: Lines, states: Iterable[tuple[int, Lines, Lines]]) -> bool:
    """Return whether new lines for the `old` ones from `start_row` on bring back what the user changed.

    `states` are earlier texts of changed lines: each with its first row and the lines that are there now. A revert puts
    a whole state, or some of it, in place of what is there now.
    """
    taken, brought = [line for line in old if line.strip()], [line for line in new if line.strip()]
    for row, now, state in states:
        first, last = start_row - row, start_row - row + len(old)
        if first >= 0 and last <= len(now) and [*now[:first], *new, *now[last:]] == list(state):
            return True
        if start_row + len(old) < row - NEAR_ROWS or start_row > row + len(now) + NEAR_ROWS:
            continue
        if all(line in now and line not in state for line in taken) and all(
            line in state and line not in now for line in brought
        ):
            return True
    return False
