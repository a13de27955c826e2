"""Tables and phrases of the benchmarks' reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Sequence[object]], *, left: int = 1) -> list[str]:
    """Return rows of cells as lines with aligned columns: the first `left` to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    form = "  ".join(f"{{:{'<' if number < left else '>'}{width}}}" for number, width in enumerate(widths))
    return [form.format(*row).rstrip() for row in cells]


def format_ratio(values: Mapping[str, Any] | None, digits: int = 3, nothing: str = "") -> str:
    """Format a ratio and its interval: 1.214 (1.180–1.251)."""
    if values is None:
        return nothing
    return f"{values['ratio']:.{digits}f} ({values['low']:.{digits}f}–{values['high']:.{digits}f})"


def format_percentiles(values: Mapping[str, float]) -> str:
    """Format the 50th, 95th and 99th percentile; "none" if there are no values."""
    return " ".join(f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in values.values()) or "none"


def format_load(machine: Mapping[str, Any]) -> str:
    """Format the number of cores, and the load before and after the run."""
    return f"{machine['cores']} cores, load " + " to ".join(f"{value:.1f}" for value in machine["load"])


def size_of(shape: str) -> str:
    """Return the target's size in a sentence: "target as large as …"."""
    return "it is" if shape == "own" else f"{shape} (simulated)"


def section_title(size: str) -> str:
    """Return the line above a section about a target of that size."""
    return f"── target as large as {size} " + "─" * 40
