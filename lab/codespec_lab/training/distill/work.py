"""The work folder of a run, beside its result: what was decided, what is written, and how much time is used.

A part is written in one step, so a kill loses the part under way and nothing else; a decision that the clock made is
kept, so a run that goes on makes the same. Knows files and seconds; knows no models.
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
    """`settings` are the run's, as plain JSON values. Raises TrainingError if the run cannot begin or go on so."""

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
        """Working time of the run so far."""
        return self._used + time.monotonic() - self._since

    @property
    def checkpoint(self) -> Path:
        """The training's state."""
        return self.folder / "train.ckpt"

    @property
    def student(self) -> Path:
        """The drafter as it is measured, then as it is handed over."""
        return self.folder / "drafter"

    def decide(self, what: str, make: Callable[[], Any]) -> Any:
        """What was decided before, or what `make` decides now, as plain JSON values."""
        if what not in self._state["decided"]:
            self._state["decided"][what] = make()
            self._save()
        return self._state["decided"][what]

    def is_decided(self, what: str) -> bool:
        """Whether a stage is over."""
        return what in self._state["decided"]

    def texts(self, kind: str, number: int) -> Path:
        """A part's texts."""
        return self.folder / f"{kind}-{number:04}.jsonl.gz"

    def save_part(self, kind: str, number: int, examples: list[DistillationExample]) -> None:
        """Keep a part's texts, and the time that they took."""
        save_examples(self.texts(kind, number), examples)
        self._save()

    def load_part(self, kind: str, number: int) -> list[DistillationExample] | None:
        """A part's texts; None if they are not written yet. Raises TrainingError if they cannot be read."""
        file = self.texts(kind, number)
        if not file.exists():
            return None
        try:
            return load_examples(file)
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise TrainingError(f"{file} cannot be read ({error}): remove {self.folder} and begin anew.") from error

    def has_expected(self, kind: str, number: int) -> bool:
        """Whether the target has read a part."""
        return self._expected(kind, number).exists()

    def expected(self, kind: str, number: int, read: Callable[[], list[Expected]]) -> list[Expected]:
        """What the target expects in a part's texts: kept, or read now."""
        file = self._expected(kind, number)
        if not file.exists():
            save_expected(file, read())
            self._save()
        return load_expected(file)

    def _expected(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:04}.safetensors"

    def keep_time(self) -> None:
        """Write down how much time is used."""
        self._save()

    def remove(self) -> None:
        """The run is over."""
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
