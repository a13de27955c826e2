"""What every source of a model offers: a name, a plan, and the files.

Knows no source; hub, wheel and local are the three.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Say = Callable[[str], None]  # takes a line for each phase


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pull is going to bring.

    label    what is pulled from, as the manifest keeps it
    licence  as the source states it; "" where it does not
    size     bytes to download or to copy
    room     bytes of disk beside them: what is unpacked or converted
    """

    label: str
    licence: str
    size: int
    room: int = 0


@dataclass(frozen=True, slots=True)
class Fetched:
    """What lies in the folder now: the file that is the model ("": the folder) and each file's SHA-256."""

    model: str
    sha256: dict[str, str]


class Source(Protocol):
    """Where one model comes from."""

    @property
    def name(self) -> str:
        """The name that it gets here."""
        ...

    def plan(self) -> Plan:
        """What there is to fetch; asks the source."""
        ...

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Brings the files into a folder, in which an earlier attempt may have left some; checks each of them."""
        ...
