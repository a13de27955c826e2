"""What `make demo` says of its measurement: speeds, ratios with their spread, and whether the texts are the same.

Knows runs; runs nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from codespec.bench.mismatch import first_difference
from codespec.cli.demo_racers import GENERATE, OFF, ON, Racer, Run
from codespec.types import Stats

Runs = Mapping[Racer, Sequence[Run]]


def speed_lines(runs: Runs) -> list[str]:
    """A line for each name, in its fastest number format: tokens a second, and by how much speculation is faster."""
    fastest = {racer.name: racer for racer in sorted(runs, key=lambda racer: _speed(runs[racer]))}
    on = runs[fastest[ON]]
    lines = [f"{'':28}tokens/s  {'':8}  codespec on is (median of {len(on)} places; min, max)"]
    for name in dict.fromkeys(racer.name for racer in runs):
        racer = fastest[name]
        ratios = "" if name == ON else _ratios(runs[racer], on)
        lines.append(f"{name:28}{_speed(runs[racer]):8.1f}  {racer.dtype:8}  {ratios}".rstrip())
    return lines


def draft_lines(runs: Runs) -> list[str]:
    """What was guessed, and where the time went, of speculation in its fastest number format."""
    on = max((racer for racer in runs if racer.name == ON), key=lambda racer: _speed(runs[racer]))
    total = Stats()
    for run in runs[on]:
        total.add(run.stats or Stats())
    parts = {"draft": total.draft_ms, "retokenize": total.retokenize_ms, "verify": total.verify_ms}
    parts |= {"prefill": total.prefill_ms, "rest": total.other_ms}
    whole = sum(parts.values())
    return [
        f"accepted {total.accepted} of {total.drafted} drafted tokens; {total.committed / total.rounds:.2f} tokens a "
        "round",
        "time with speculation: " + ", ".join(f"{name} {100 * ms / whole:.0f} %" for name, ms in parts.items()),
    ]


def text_lines(runs: Runs, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Whether the texts are the same: a line for each comparison, and where a text differs that must not.

    Off against on in every number format. transformers adds up in another order, which only float32 does not show.
    """
    lines, wrong = [], []
    for racer in (racer for racer in runs if racer.name in (ON, GENERATE)):
        off = next(other for other in runs if (other.name, other.dtype) == (OFF, racer.dtype))
        if racer.name == GENERATE and racer.dtype != "float32":
            continue
        found = _differences(runs[racer], runs[off], names)
        wrong += [f"{where}, {racer.dtype}" for where in found] if off.exact else []
        note = "" if off.exact else " (fast mode is used: differences are near-ties)"
        same = len(names) - len(found)
        lines.append(f"same text, {racer.name} and {OFF}, {racer.dtype}: {same} of {len(names)}{note}")
    if not any(racer.dtype == "float32" for racer in runs):
        lines.append(f"{GENERATE}' texts are compared in float32 only: in other formats it rounds at other places")
    return lines, wrong


def _speed(runs: Sequence[Run]) -> float:
    return sum(len(run.ids) for run in runs) / sum(run.seconds for run in runs)


def _ratios(slow: Sequence[Run], on: Sequence[Run]) -> str:
    ratios = [a.pace / b.pace for a, b in zip(slow, on, strict=True)]
    return f"{statistics.median(ratios):.2f} × as fast ({min(ratios):.2f}, {max(ratios):.2f})"


def _differences(runs: Sequence[Run], plain: Sequence[Run], names: Sequence[str]) -> list[str]:
    positions = [first_difference(a.ids, b.ids) for a, b in zip(runs, plain, strict=True)]
    return [f"{name}, token {at + 1}" for name, at in zip(names, positions, strict=True) if at is not None]
