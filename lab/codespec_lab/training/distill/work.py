"""The settings of `codespec distill`, with checks that need no weights, and the work folder of a run.

The folder is next to the output and holds decisions, finished parts, and the time used. Parts are written atomically,
so a kill loses only the part in progress. Decisions made by the clock are stored, so a resumed run repeats them.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codespec.errors import PairError, TrainingError
from codespec.store.resolve import resolve
from codespec.text.fim_templates import FimMissing, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.corpus.documents import write_atomically
from codespec_lab.training.distill.teacher import Expected, load_expected, save_expected
from codespec_lab.training.distill.texts import DistillationExample, load_examples, save_examples

STATE = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a run.

    `drafter` may be `new:` and a size; `code` and `keep` are folders; `places` and `steps` are 0 if the minutes decide;
    `method` is auto, full or lora.
    """

    target: str
    drafter: str
    code: tuple[str, ...]
    out: str
    keep: tuple[str, ...] = ()
    minutes: float = 20.0
    places: int = 0
    steps: int = 0
    rounds: int = 0
    rate: float = 1e-3
    method: str = "auto"
    plain: bool = False
    seed: int = 0
    threads: int = 2
    device: str = "cpu"

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @property
    def command(self) -> str:
        """The command line that gives these settings."""
        words = ["codespec", "distill"]
        plain = Settings(target="", drafter="", code=(), out="").as_dict()
        for name, value in self.as_dict().items():
            if value is True:
                words.append(f"--{name}")
            elif isinstance(value, list):
                words += [f"--{name}", *(Path(folder).name for folder in value)] if value else []
            elif value != plain[name]:
                words += [f"--{name}", Path(value).name if name == "out" else str(value)]
        return shlex.join(words)


def check_out(settings: Settings) -> None:
    """Raise TrainingError if the output exists or lies inside the training code."""
    out = Path(settings.out)
    if out.exists():
        raise TrainingError(f"{out} exists already, and nothing is overwritten: choose another --out.")
    for folder in settings.code:
        if out.resolve().is_relative_to(Path(folder).resolve()):
            raise TrainingError(f"{out} lies inside the code of {folder}: choose an --out beside it.")


def check_target(settings: Settings) -> bool:
    """Return whether to train on infilling, not only on continuations. Raise PairError if the target cannot infill."""
    if settings.plain:
        return False
    template = find_template(TextTokenizer.from_folder(resolve(settings.target).folder()))
    if isinstance(template, FimMissing):
        raise PairError(
            f"{settings.target} cannot fill in between a prefix and a suffix ({template.reason}): add --plain to "
            "distill on continuations alone."
        )
    return True


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
        self.save()

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

    def decide(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the stored decision `name`, or store the result of `make` (plain JSON values) and return it."""
        if name not in self._state["decided"]:
            self._state["decided"][name] = make()
            self.save()
        return self._state["decided"][name]

    def is_decided(self, name: str) -> bool:
        """Return whether the decision `name` is stored."""
        return name in self._state["decided"]

    def texts(self, kind: str, number: int) -> Path:
        """Return the file of a part's texts."""
        return self.folder / f"{kind}-{number:04}.jsonl.gz"

    def save_part(self, kind: str, number: int, examples: list[DistillationExample]) -> None:
        """Save a part's texts and the time used."""
        save_examples(self.texts(kind, number), examples)
        self.save()

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
            self.save()
        return load_expected(file)

    def _expected(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:04}.safetensors"

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

    def save(self) -> None:
        """Save the decisions and the time used."""
        if hasattr(self, "_since"):
            self._state["seconds"] = round(self.seconds, 3)
        write_atomically(self.folder / STATE, json.dumps(self._state, indent=1).encode() + b"\n")
