"""Define the values of next edits: what the user changed, and what is suggested in return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Source = Literal["rename", "model"]


class Hunk(NamedTuple):
    """A replacement of whole lines: rows [start_row, end_row) of a document, whose text is `old`, become `new`.

    Both texts hold the document's own line ends. An empty `old` inserts before `start_row`.
    """

    start_row: int
    end_row: int
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class NextEdit:
    """A suggested edit of one document.

    `hunks` do not overlap, refer to the text of `version` and stand in the order in which to visit them. `source` is
    the reason for it: a renamed name or a model's answer.
    """

    id: str
    uri: str
    version: int | None
    hunks: Sequence[Hunk]
    source: Source


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a document by the user, merged from the edits that made it.

    `old` became `new`, both whole lines with their line ends, of which the first is `row` of the text before the change
    and after it. `language` is a grammar's name or "". `time` is the session's clock, in seconds, at the last of the
    edits. `before` and `after` are the document's text before and after the change, bounded around it. `predicted` is
    set if it was an accepted suggestion.
    """

    uri: str
    path: str
    language: str
    row: int
    old: str
    new: str
    time: float
    before: str
    after: str
    predicted: bool = False
