"""The daemon's model against the one that was asked for, and a better one that it offers. Knows words and what the
daemon said of itself; asks nobody.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from codespec_lsp.daemon_client import Health
from codespec_lsp.settings import Settings


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that the user may pull in place of the starter pair."""

    model: str
    bytes: int

    @property
    def sentence(self) -> str:
        """For a status line."""
        size = f"{self.bytes / 1e6:.0f} MB"
        return f"The small starter pair answers: `codespec models pull {self.model}` ({size}) brings a real one."

    def as_dict(self) -> dict[str, Any]:
        """For a client that asks the user and runs the command; `-P` as in `serve_command`."""
        command = [sys.executable, "-P", "-m", "codespec", "models", "pull", self.model]
        return {"model": self.model, "bytes": self.bytes, "command": command, "message": self.sentence}


def read_offer(health: Health, settings: Settings) -> Offer | None:
    """What the daemon offers, where its models lie on this machine and none was asked for."""
    if health.state != "ready" or not health.offer or settings.model or not settings.daemon_is_here:
        return None
    model, size = health.offer.get("model"), health.offer.get("bytes")
    return Offer(model, size) if isinstance(model, str) and model and isinstance(size, int) else None


def note_of(health: Health, settings: Settings) -> str:
    """What the user should know of the daemon while it serves; "" for nothing."""
    if health.state != "ready":
        return ""
    if health.warning:
        return health.warning
    if settings.model and not _is_named(health, settings.model):
        other = health.model or health.target
        return (
            f"The daemon at {settings.url} was started with {other} and not with {settings.model}: restart "
            "the daemon, or unset codespec.model."
        )
    offered = read_offer(health, settings)
    return offered.sentence if offered else ""


def _is_named(health: Health, name: str) -> bool:
    """Whether a name means the daemon's model, which has several: its own, its hub id, in any case of letters."""
    return name.lower() in {known.lower() for known in (health.model, *health.names)}
