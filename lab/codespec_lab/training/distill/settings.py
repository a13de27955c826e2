"""Settings of `codespec distill`, and checks that need no weights."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codespec.errors import PairError, TrainingError
from codespec.store.resolve import resolve
from codespec.text.fim_templates import FimMissing, find_template
from codespec.text.tokenizer import TextTokenizer


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
                words += [f"--{name}", *(Path(one).name for one in value)] if value else []
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
