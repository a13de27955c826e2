"""The work folder of a run, next to its output: decisions, finished parts, and time used.

Parts are written atomically, so a kill loses only the part in progress. Decisions made by the clock are stored, so a
resumed run repeats them.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from codespec.errors import TrainingError
from codespec_lab.corpus.documents import write_atomically
from codespec_lab.training.distill.teacher import Expected, load_expected, save_expected
from codespec_lab.training.distill.texts import DistillationExample, load_examples, save_examples

STATE = "run.json"


class WorkFolder:
    """The folder of one run with `settings`, as plain JSON values. Raise TrainingError if it cannot begin or resume."""

    def __init__(self, out: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
        self.folder = out.with_name(out.name + ".work")
        self._state: dict[str, Any] = {"settings": dict(settings), "decided": {}, "seconds": 0.0}
        if resume:
            self._go_on()
        elif self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise TrainingError(
                f"{self.folder} holds a run that has not ended: continue it with --resume, or remove the folder."
            )
        self._used, self._since = float(self._state["seconds"]), time.monotonic()
        self._save()

    @property
    def seconds(self) -> float:
        """Working time of the run so far, in seconds."""
        return self._used + time.monotonic() - self._since

    @property
    def checkpoint(self) -> Path:
        """File of the training checkpoint."""
        return self.folder / "train.ckpt"

    @property
    def student(self) -> Path:
        """Folder of the drafter while it is measured, before it moves to the output."""
        return self.folder / "drafter"

    def decide(self, what: str, make: Callable[[], Any]) -> Any:
        """Return the stored decision `what`, or store the result of `make` (plain JSON values) and return it."""
        if what not in self._state["decided"]:
            self._state["decided"][what] = make()
            self._save()
        return self._state["decided"][what]

    def is_decided(self, what: str) -> bool:
        """Return whether the decision `what` is stored."""
        return what in self._state["decided"]

    def texts(self, kind: str, number: int) -> Path:
        """Return the file of a part's texts."""
        return self.folder / f"{kind}-{number:04}.jsonl.gz"

    def save_part(self, kind: str, number: int, examples: list[DistillationExample]) -> None:
        """Save a part's texts and the time used."""
        save_examples(self.texts(kind, number), examples)
        self._save()

    def load_part(self, kind: str, number: int) -> list[DistillationExample] | None:
        """Return a part's texts, or None if they are not written yet. Raise TrainingError if they cannot be read."""
        file = self.texts(kind, number)
        if not file.exists():
            return None
        try:
            return load_examples(file)
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise TrainingError(f"{file} cannot be read ({error}): remove {self.folder} and begin anew.") from error

    def has_expected(self, kind: str, number: int) -> bool:
        """Return whether the target has read a part."""
        return self._expected(kind, number).exists()

    def expected(self, kind: str, number: int, read: Callable[[], list[Expected]]) -> list[Expected]:
        """Return the target's distributions in a part's texts, calling `read` if they are not stored."""
        file = self._expected(kind, number)
        if not file.exists():
            save_expected(file, read())
            self._save()
        return load_expected(file)

    def _expected(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:04}.safetensors"

    def keep_time(self) -> None:
        """Save the time used."""
        self._save()

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _go_on(self) -> None:
        try:
            kept = json.loads((self.folder / STATE).read_text(encoding="utf-8"))
            other = [name for name, value in self._state["settings"].items() if kept["settings"][name] != value]
        except FileNotFoundError as error:
            raise TrainingError(f"There is no run to continue in {self.folder}: begin without --resume.") from error
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise TrainingError(f"The run in {self.folder} is damaged: remove the folder and begin anew.") from error
        if other:
            raise TrainingError(
                f"The run in {self.folder} has another --{other[0]}: give the same settings, or remove the folder."
            )
        self._state = kept

    def _save(self) -> None:
        if hasattr(self, "_since"):
            self._state["seconds"] = round(self.seconds, 3)
        write_atomically(self.folder / STATE, json.dumps(self._state, indent=1).encode() + b"\n")
