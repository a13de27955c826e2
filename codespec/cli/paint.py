"""Print a completion so that accepted, rejected and target text are distinguishable.

On a terminal, accepted text is green, rejected text red and struck through, and the target's own text plain. Otherwise
brackets mark them: [accepted], -rejected-.
"""

from __future__ import annotations

from typing import TextIO

from codespec.contract.types import Completion, RoundEvent

ACCEPTED, REJECTED, FAINT, RESET = "\x1b[32m", "\x1b[31;9m", "\x1b[2m", "\x1b[0m"


class Painter:
    """Writes and flushes text as it arrives."""

    def __init__(self, out: TextIO, colour: bool) -> None:
        self.out = out
        self.colour = colour
        self._rounds: list[RoundEvent] = []

    def plain(self, text: str) -> None:
        """Write text unchanged."""
        self.out.write(text)
        self.out.flush()

    def round(self, event: RoundEvent) -> None:
        """Write one round: accepted text, rejected text, and the target's own text."""
        self._rounds.append(event)
        rejected = event.draft.removeprefix(event.accepted_text) if event.accepted < event.drafted else ""
        if event.accepted_text:
            self.plain(f"{ACCEPTED}{event.accepted_text}{RESET}" if self.colour else f"[{event.accepted_text}]")
        if rejected:
            flat = rejected.replace("\r", "\\r").replace("\n", "\\n")  # rejected text must not shift the rest
            self.plain(f"{REJECTED}{flat}{RESET}" if self.colour else f"-{flat}-")
        self.plain(event.target_text)

    def why(self) -> None:
        """Write a faint line for each round: accepted and drafted tokens, and the reason for the draft length."""
        self._faint("step  accepted/drafted tokens, and the reason for the draft's length")
        for number, event in enumerate(self._rounds, 1):
            self._faint(f"{number:3}  {event.accepted}/{event.drafted}  {event.reason or 'no draft'}")

    def end(self) -> None:
        """Write a line break after the completion."""
        self.plain("\n")

    def summary(self, done: Completion) -> None:
        """Write one faint line of statistics."""
        stats = done.stats
        line = (
            f"{stats.committed} tokens in {stats.rounds} rounds, {stats.accepted} of {stats.drafted} drafted accepted, "
            f"{stats.total_ms:.0f} ms"
        )
        by = ", ".join(f"{name} {c.accepted}/{c.drafted}" for name, c in sorted(stats.by_source.items()))
        self._faint(f"{line}{f' ({by})' if by else ''}")

    def _faint(self, line: str) -> None:
        self.plain(f"{FAINT}{line}{RESET}\n" if self.colour else f"{line}\n")
