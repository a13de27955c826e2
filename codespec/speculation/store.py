"""Save what was learned about each pair in the user's state folder, one file per pair, and list it for display.

A corrupt file is reported once, and learning starts over. An unwritable folder is reported once, and nothing is saved.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from codespec.json_store import CORRUPT, Kept
from codespec.speculation.acceptance_model import AcceptanceModel
from codespec.user_folders import make_state_folder, state_folder


class Learned:
    """The stored model of the pair with this fingerprint. Messages for the user go to `notes`."""

    def __init__(self, fingerprint: str, notes: MutableSequence[str]) -> None:
        self._file = Kept(
            learned_folder() / f"{fingerprint}.json",
            "acceptance model",
            AcceptanceModel.from_dict,
            AcceptanceModel.as_dict,
            again="it is learned again",
            each="make it writable, or set learn = false",
        )
        self._notes = notes

    def load(self) -> AcceptanceModel:
        """Return the stored model, or a new one."""
        return self._file.load(self._notes) or AcceptanceModel()

    def save(self, model: AcceptanceModel) -> None:
        """Save the model, or report once that it can't be saved."""
        with suppress(OSError):  # `Kept` reports the reason below
            make_state_folder()
        self._file.save(model, self._notes)


def learned_folder() -> Path:
    """Return the folder with all pairs' files."""
    return state_folder() / "acceptance"


def forget() -> int:
    """Delete the learned state of every pair and return the number of pairs. Raises OSError."""
    files = sorted(learned_folder().glob("*.json"))
    for file in [*files, *learned_folder().glob(f"*.json{CORRUPT}")]:
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
