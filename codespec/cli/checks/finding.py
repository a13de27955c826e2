"""What a check found: one line with a state, what was seen, and how to mend it. Knows sentences; checks nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from codespec.errors import CodespecError

State = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`mend` is what to do, "" where nothing is."""

    name: str
    state: State
    said: str
    mend: str = ""

    @property
    def line(self) -> str:
        """As it is printed."""
        said = f"{self.said}: {self.mend}" if self.mend else self.said
        return f"{self.state:<9}{self.name:<14}{' '.join(said.split())}"


def well(name: str, said: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", said)


def warning(name: str, said: str, mend: str) -> Finding:
    """It works, but not as it could."""
    return Finding(name, "warning", said, mend)


def failed(name: str, said: str, mend: str) -> Finding:
    """It does not work until this is mended."""
    return Finding(name, "failed", said, mend)


def from_error(name: str, error: CodespecError, state: State = "failed") -> Finding:
    """An error's own sentence, which ends in its mend."""
    said, _, mend = str(error).removesuffix(".").rpartition(": ")
    return Finding(name, state, said, mend) if said else Finding(name, state, mend)
