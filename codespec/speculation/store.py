"""What was learned about a pair, kept between runs: one file a pair in the user's state folder; and all of it as rows
for people. Knows files and counters; does not know texts.

A corrupt file is said once and begun afresh; a folder that can't be written is said once, and nothing is kept then.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from codespec import json_store
from codespec.speculation.acceptance_model import AcceptanceModel
from codespec.user_folders import make_state_folder, state_folder


class Learned:
    """The kept model of the pair that `fingerprint` names; what the user should know goes to `notes`."""

    def __init__(self, fingerprint: str, notes: MutableSequence[str]) -> None:
        self.file = learned_folder() / f"{fingerprint}.json"
        self._notes = notes
        self._failed = False

    def load(self) -> AcceptanceModel:
        """What was kept, or a fresh model."""
        what, then = "what was learned about this pair", "it is learned afresh"
        return json_store.load(self.file, AcceptanceModel.from_dict, what, then, self._notes) or AcceptanceModel()

    def save(self, model: AcceptanceModel) -> None:
        """Keeps it; after a failure, which is said, no more is tried."""
        if self._failed:
            return
        with suppress(OSError):  # why nothing can be written is noted below
            make_state_folder()
        then = "make it writable, or set learn = false"
        self._failed = not json_store.keep(self.file, model.as_dict(), "what was learned", then, self._notes)


def learned_folder() -> Path:
    """The folder of all pairs' files."""
    return state_folder() / "acceptance"


def forget() -> int:
    """Removes what was learned about every pair; returns of how many. Raises OSError."""
    files = sorted(learned_folder().glob("*.json"))
    for file in [*files, *learned_folder().glob(f"*.json{json_store.CORRUPT}")]:
        file.unlink(missing_ok=True)
    return len(files)


@dataclass(frozen=True, slots=True)
class LearnedRow:
    """First tokens of one proposer's drafts in one context: how many were judged lately, and the learned chance."""

    pair: str
    source: str
    context: str
    judged: float
    chance: float


def learned_rows(notes: MutableSequence[str]) -> list[LearnedRow]:
    """All pairs' rows; a file that can't be read has none and is said in `notes`."""
    names = sorted(file.stem for file in learned_folder().glob("*.json"))
    return [row for name in names for row in _rows(name, Learned(name, notes).load())]


def _rows(pair: str, model: AcceptanceModel) -> list[LearnedRow]:
    return [
        LearnedRow(pair, source, context, counter.seen[0], model.rate(source, context, 0))
        for (source, context), counter in sorted(model.counters.items())
    ]
