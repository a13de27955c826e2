"""One line of the pair report, and what all lines have in common. Knows values, no models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from codespec.pair.facts import ModelFacts

Value = str | int | float | bool | tuple[str, ...] | None
Finding = Literal["ok", "note", "problem"]
Unit = Literal["", "size", "count", "share", "times", "bytes"]


@dataclass(frozen=True, slots=True)
class Row:
    """A measured property of target and drafter, what to think of it, and why in one clause.

    What belongs to the pair stands in `drafter`. `criterion` tells whether one of the usual compatibility criteria
    (SambaStudio's list) holds; None where the row is none of them. They are measured here and never demanded.
    """

    key: str
    label: str
    target: Value
    drafter: Value
    finding: Finding = "ok"
    why: str = ""
    unit: Unit = ""
    criterion: bool | None = None

    def as_dict(self) -> Mapping[str, Any]:
        """Plain JSON values; the finding is called `verdict` there."""
        values = asdict(self)
        return {("verdict" if key == "finding" else key): value for key, value in values.items()}


@dataclass(frozen=True, slots=True)
class Pair:
    """The two sides."""

    target: ModelFacts
    drafter: ModelFacts

    @property
    def size_ratio(self) -> float:
        """How many times the target's parameters are the drafter's."""
        return self.target.weights.parameters / self.drafter.weights.parameters

    @property
    def shared(self) -> bool:
        """Whether ids of one are ids of the other."""
        mine, other = self.target.tokenizer, self.drafter.tokenizer
        return mine is not None and other is not None and mine.fingerprint == other.fingerprint

    @property
    def problem(self) -> str:
        """The sentence that says why it can't work; "" if it can."""
        for role, side in (("target", self.target), ("drafter", self.drafter)):
            for reason in side.reasons:
                return f"The {role} {side.name} can't be used, because {reason.removesuffix('.')}."
        return ""


def first_problem(*reasons: str) -> tuple[Finding, str]:
    """A problem with the first reason that is not empty, else ok."""
    for reason in reasons:
        if reason:
            return "problem", reason
    return "ok", ""
