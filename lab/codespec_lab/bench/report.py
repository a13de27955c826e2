"""Phrases that the benchmarks' reports share. Knows figures as plain JSON values; knows no benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def format_ratio(values: Mapping[str, Any] | None, digits: int = 3, nothing: str = "") -> str:
    """A ratio and its interval: 1.214 (1.180–1.251)."""
    if values is None:
        return nothing
    return f"{values['ratio']:.{digits}f} ({values['low']:.{digits}f}–{values['high']:.{digits}f})"


def format_percentiles(values: Mapping[str, float]) -> str:
    """The 50th, 95th and 99th percentile; "none" where nothing was measured."""
    return " ".join(f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in values.values()) or "none"


def format_load(machine: Mapping[str, Any]) -> str:
    """The cores, and the load before and after the run."""
    return f"{machine['cores']} cores, load " + " to ".join(f"{value:.1f}" for value in machine["load"])


def bounds(interval: Mapping[str, float]) -> tuple[float, float]:
    """An interval's ends, for a chart."""
    return interval["low"], interval["high"]


def size_of(shape: str) -> str:
    """The target's size in a sentence: "target as large as …"."""
    return "it is" if shape == "own" else f"{shape} (simulated)"


def section_title(size: str) -> str:
    """The line above a section about a target of that size."""
    return f"── target as large as {size} " + "─" * 40


def verdict_lines(verdicts: Mapping[str, bool]) -> list[str]:
    """A line for each claim: whether it holds."""
    return [f"{'holds' if holds else 'FAILS'}: {claim}" for claim, holds in verdicts.items()]
