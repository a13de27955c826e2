"""What was learned about a pair, kept between runs: one file a pair in the user's state folder. Knows files, no text.

A corrupt file is said once and begun afresh; a folder that can't be written is said once, and nothing is kept then.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from pathlib import Path

from codespec.control import kept
from codespec.control.survival import Survival
from codespec.folders import make_state_folder, state_folder


class Learned:
    """The kept survival of the pair that `fingerprint` names; what the user should know goes to `notes`."""

    def __init__(self, fingerprint: str, notes: MutableSequence[str]) -> None:
        self.file = learned_folder() / f"{fingerprint}.json"
        self._notes = notes
        self._failed = False

    def load(self) -> Survival:
        """What was kept, or a fresh survival."""
        what, then = "what was learned about this pair", "it is learned afresh"
        return kept.load(self.file, Survival.from_dict, what, then, self._notes) or Survival()

    def save(self, survival: Survival) -> None:
        """Keeps it; after a failure, which is said, no more is tried."""
        if self._failed:
            return
        try:
            make_state_folder()
            kept.write(self.file, survival.as_dict())
        except OSError as error:
            self._failed = True
            self._notes.append(
                f"what was learned can't be kept in {self.file.parent} ({error.strerror}): "
                "make it writable, or set learn = false"
            )


def learned_folder() -> Path:
    """The folder of all pairs' files."""
    return state_folder() / "learned"


def forget() -> int:
    """Removes what was learned about every pair; returns of how many. Raises OSError."""
    files = sorted(learned_folder().glob("*.json"))
    for file in [*files, *learned_folder().glob(f"*.json{kept.CORRUPT}")]:
        file.unlink(missing_ok=True)
    return len(files)
