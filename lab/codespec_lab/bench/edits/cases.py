"""Cases of next edits: a document, the changes that were made, and the hunks that should follow, if any.

`scenarios.toml` has those written for this project; `release_places` makes others from two releases of a package.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from codespec_grammars import find_language
from codespec_lsp.buffer import split_lines
from codespec_lsp.line_edits import Hunk

from codespec.api.body import ChangeBody, EditBody
from codespec_lab.bench.edits.release_pairs import hunks_between

SCENARIOS = Path(__file__).with_name("scenarios.toml")
MAX_HISTORY = 6  # changes


class Made(NamedTuple):
    """A change that was made: `old` became `new` at `row`; both are whole lines."""

    row: int
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Case:
    """A document as it is now, and where to look for the next edit.

    kind      of the source: "scenario" or "release"
    text      the document
    row       row in focus; `cursor` is a row and a character
    history   changes that led to `text`, oldest first
    wanted    hunks that lead from `text` to the text that follows, those far from `row` included; a case whose window
              holds none expects silence
    """

    name: str
    kind: str
    path: str
    text: str
    row: int
    cursor: tuple[int, int]
    history: Sequence[Made]
    wanted: Sequence[Hunk]

    @property
    def language(self) -> str:
        """Return the language of the path."""
        return find_language("", self.path) or "unknown"

    def body(self, speculate: bool) -> EditBody:
        """Return the request of the daemon's endpoint."""
        history: list[ChangeBody] = [
            {"path": self.path, "row": row, "old": old, "new": new} for row, old, new in self.history
        ]
        return {
            "path": self.path,
            "language": self.language,
            "document": f"bench:{self.name}",
            "text": self.text,
            "places": [self.row],
            "cursor": {"row": self.cursor[0], "column": self.cursor[1]},
            "history": history,
            "speculate": speculate,
        }


def apply(text: str, hunks: Sequence[Hunk]) -> str:
    """Return a text with hunks applied, which refer to the text before and don't overlap."""
    lines = split_lines(text)
    for hunk in sorted(hunks, reverse=True):
        lines[hunk.start_row : hunk.end_row] = [hunk.new]
    return "".join(lines)


def read_scenarios(file: Path = SCENARIOS) -> list[Case]:
    """Return the scenarios of a file."""
    return [_scenario(table) for table in tomllib.loads(file.read_text(encoding="utf-8"))["scenario"]]


def _scenario(table: dict[str, Any]) -> Case:
    text, history = table["before"], []
    for old, new in table.get("edits", ()):
        changed = _substituted(text, old, new)
        history += [Made(hunk.start_row, hunk.old, hunk.new) for hunk in hunks_between(text, changed)]
        text = changed
    final = text
    for old, new in table.get("expect", ()):
        final = _substituted(final, old, new)
    wanted = tuple(hunks_between(text, final))
    lines = text.splitlines()
    row = next(n for n, line in enumerate(lines) if table["at"] in line) if "at" in table else wanted[0].start_row
    row, cursor = min(row, len(lines) - 1), end_of(history[-1])
    kept = tuple(history[-MAX_HISTORY:])
    return Case(table["name"], "scenario", table["path"], text, row, cursor, kept, wanted)


def _substituted(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} must be there once"
    return text.replace(old, new)


def end_of(change: Made) -> tuple[int, int]:
    """Return the cursor after a change: the end of its last line, or the start of the line that is there now."""
    if not change.new:
        return change.row, 0
    lines = change.new.removesuffix("\n").split("\n")
    return change.row + len(lines) - 1, len(lines[-1])
