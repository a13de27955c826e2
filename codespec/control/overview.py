"""What was learned, as a table for people: by pair, proposer and context. Knows files and counters."""

from __future__ import annotations

from collections.abc import MutableSequence
from dataclasses import dataclass

from codespec.control.learned import Learned, learned_folder
from codespec.control.survival import Survival


@dataclass(frozen=True, slots=True)
class LearnedRow:
    """First tokens of one proposer's drafts in one context: how many were judged lately, and the learned chance."""

    pair: str
    source: str
    context: str
    language: str
    judged: float
    chance: float


def learned_rows(notes: MutableSequence[str]) -> list[LearnedRow]:
    """All pairs' rows; a file that can't be read has none and is said in `notes`."""
    names = sorted(file.stem for file in learned_folder().glob("*.json"))
    return [row for name in names for row in _rows(name, Learned(name, notes).load())]


def _rows(pair: str, survival: Survival) -> list[LearnedRow]:
    return [
        LearnedRow(pair, source, context, language, counter.seen[0], survival.rate(source, (context, language), 0))
        for (source, context, language), counter in sorted(survival.counters.items())
    ]
