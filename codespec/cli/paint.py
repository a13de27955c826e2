"""Shows who wrote what. Knows terminals and colours; knows rounds as values.

Accepted text is green, rejected text red and struck through, the target's own text plain; without a terminal the
same is told with brackets: [accepted], -rejected-.
"""

from __future__ import annotations

from typing import TextIO

from codespec.types import Completion, RoundEvent

ACCEPTED, REJECTED, FAINT, RESET = "\x1b[32m", "\x1b[31;9m", "\x1b[2m", "\x1b[0m"


class Painter:
    """Writes text as it comes, flushed at once."""

    def __init__(self, out: TextIO, colour: bool) -> None:
        self.out = out
        self.colour = colour
        self._rounds: list[RoundEvent] = []

    def plain(self, text: str) -> None:
        """Text as it is."""
        self.out.write(text)
        self.out.flush()

    def round(self, event: RoundEvent) -> None:
        """One round: what was accepted, what was rejected, what the target wrote."""
        self._rounds.append(event)
        rejected = event.draft.removeprefix(event.accepted_text) if event.accepted < event.drafted else ""
        if event.accepted_text:
            self.plain(f"{ACCEPTED}{event.accepted_text}{RESET}" if self.colour else f"[{event.accepted_text}]")
        if rejected:
            flat = rejected.replace("\r", "\\r").replace("\n", "\\n")  # what is not part of the text must not move it
            self.plain(f"{REJECTED}{flat}{RESET}" if self.colour else f"-{flat}-")
        self.plain(event.target_text)

    def why(self) -> None:
        """A faint line for each round so far: accepted and drafted tokens, and why the draft was that long."""
        self._faint("step  accepted/drafted tokens, and why so many were drafted")
        for number, event in enumerate(self._rounds, 1):
            self._faint(f"{number:3}  {event.accepted}/{event.drafted}  {event.reason or 'no draft'}")

    def end(self) -> None:
        """A line break after the completion."""
        self.plain("\n")

    def summary(self, done: Completion) -> None:
        """One faint line of numbers."""
        stats = done.stats
        line = (
            f"{stats.committed} tokens in {stats.rounds} rounds, {stats.accepted} of {stats.drafted} drafted accepted, "
            f"{stats.total_ms:.0f} ms"
        )
        by = ", ".join(f"{name} {c.accepted}/{c.drafted}" for name, c in sorted(stats.by_source.items()))
        self._faint(f"{line}{f' ({by})' if by else ''}")

    def _faint(self, line: str) -> None:
        self.plain(f"{FAINT}{line}{RESET}\n" if self.colour else f"{line}\n")
