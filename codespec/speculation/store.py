"""Save what was learned about each pair in the user's state folder, one file per pair, and list it for display.

A corrupt file is reported once, and learning starts over. An unwritable folder is reported once, and nothing is saved.
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
    """The stored model of the pair with this fingerprint. Messages for the user go to `notes`."""

    def __init__(self, fingerprint: str, notes: MutableSequence[str]) -> None:
        self.file = learned_folder() / f"{fingerprint}.json"
        self._notes = notes
        self._failed = False

    def load(self) -> AcceptanceModel:
        """Return the stored model, or a new one."""
        what, then = "the learned state of this pair", "it is learned again"
        return json_store.load(self.file, AcceptanceModel.from_dict, what, then, self._notes) or AcceptanceModel()

    def save(self, model: AcceptanceModel) -> None:
        """Save the model. After a failure, which is reported, later calls do nothing."""
        if self._failed:
            return
        with suppress(OSError):  # `keep` reports the reason below
            make_state_folder()
        then = "make it writable, or set learn = false"
        self._failed = not json_store.keep(self.file, model.as_dict(), "the learned state", then, self._notes)


def learned_folder() -> Path:
    """Return the folder with all pairs' files."""
    return state_folder() / "acceptance"


def forget() -> int:
    """Delete the learned state of every pair and return the number of pairs. Raises OSError."""
    files = sorted(learned_folder().glob("*.json"))
    for file in [*files, *learned_folder().glob(f"*.json{json_store.CORRUPT}")]:
        file.unlink(missing_ok=True)
    return len(files)


@dataclass(frozen=True, slots=True)
class LearnedRow:
    """Recent observations and learned acceptance probability of first draft tokens, for one proposer and context."""

    pair: str
    source: str
    context: str
    judged: float
    chance: float


def learned_rows(notes: MutableSequence[str]) -> list[LearnedRow]:
    """Return the rows of all pairs. Unreadable files are skipped and reported in `notes`."""
    names = sorted(file.stem for file in learned_folder().glob("*.json"))
    return [row for name in names for row in _rows(name, Learned(name, notes).load())]


def _rows(pair: str, model: AcceptanceModel) -> list[LearnedRow]:
    return [
        LearnedRow(pair, source, context, counter.seen[0], model.rate(source, context, 0))
        for (source, context), counter in sorted(model.counters.items())
    ]
