"""What happened to suggestions: shown, taken, taken in part, and where they came from. Knows numbers; keeps nothing
beyond the process and sends nothing anywhere.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Counters:
    """Of one client, since it connected. `shown` counts suggestions that were answered, `accepted` those taken whole,
    `partly_accepted` those of which only a piece was taken; `milliseconds` are the last questions' times to answer.
    """

    questions: int = 0
    answered: int = 0
    superseded: int = 0
    cancelled: int = 0
    from_memory: int = 0
    from_daemon: int = 0
    cut_by_the_clock: int = 0
    more: int = 0
    shown: int = 0
    accepted: int = 0
    partly_accepted: int = 0
    accepted_characters: int = 0
    milliseconds: deque[float] = field(default_factory=lambda: deque(maxlen=512))

    @property
    def acceptance(self) -> float:
        """The share of what was shown that was taken, whole or in part."""
        return (self.accepted + self.partly_accepted) / self.shown if self.shown else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, in camelCase as editors have it."""
        times = sorted(self.milliseconds)
        return {
            "questions": self.questions,
            "answered": self.answered,
            "superseded": self.superseded,
            "cancelled": self.cancelled,
            "fromMemory": self.from_memory,
            "fromDaemon": self.from_daemon,
            "cutByTheClock": self.cut_by_the_clock,
            "more": self.more,
            "shown": self.shown,
            "accepted": self.accepted,
            "partlyAccepted": self.partly_accepted,
            "acceptedCharacters": self.accepted_characters,
            "acceptance": round(self.acceptance, 4),
            "lastMs": round(self.milliseconds[-1], 1) if times else None,
            "medianMs": round(times[len(times) // 2], 1) if times else None,
        }
