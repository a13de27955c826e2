"""What the status line says, told when it changes, and each complaint once. Knows words; knows no protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["Normal", "Warning", "Error", "Inactive"]
KINDS: dict[str, Kind] = {"failed": "Error", "unwell": "Warning"}


@dataclass(frozen=True, slots=True)
class Status:
    """A kind as Copilot's clients know it, and why in one sentence."""

    kind: Kind = "Normal"
    message: str = ""
    busy: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"kind": self.kind, "message": self.message, "busy": self.busy}


class StatusLine:
    """Three things make it up: how the daemon is, what is to be known of its model while it is well, and why the
    document in use gets nothing ("" if it gets something)."""

    def __init__(self, show: Callable[[Status], None], complain: Callable[[str], None]) -> None:
        self._show = show
        self._complain = complain
        self._daemon = Status()
        self._note = ""
        self._reason = ""
        self._complained: set[str] = set()
        self._shown: Status | None = None

    @property
    def now(self) -> Status:
        """What is to be seen."""
        if self._reason:
            return Status("Inactive", self._reason)
        return Status(message=self._note) if self._daemon == Status() else self._daemon

    @property
    def reason(self) -> str:
        """Why the document in use gets nothing; "" if it gets something."""
        return self._reason

    def daemon(self, state: str, message: str) -> None:
        """The daemon is `ready`, `starting`, `failed` or `unwell` (it failed, but nobody asked); why it failed is told
        once, until it is well again."""
        if state == "failed" and message not in self._complained:
            self._complained.add(message)
            self._complain(message)
        if state == "ready":
            self._complained.clear()
        self._daemon = Status(KINDS.get(state, "Normal"), message, state == "starting")
        self._update()

    def note(self, sentence: str) -> None:
        """What the user should know of a daemon that is ready; "" for nothing."""
        self._note = sentence
        self._update()

    def document(self, reason: str) -> None:
        """Why the document in use is not completed; "" where it is."""
        self._reason = reason
        self._update()

    def _update(self) -> None:
        if self.now != self._shown:
            self._shown = self.now
            self._show(self.now)
