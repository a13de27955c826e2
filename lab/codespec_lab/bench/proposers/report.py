"""The table of `codespec bench proposers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def report(found: Mapping[str, Any]) -> list[str]:
    """Return one line per proposer, with three columns for each concurrency."""
    counts = list(dict.fromkeys(row["at_once"] for row in found["rows"]))
    names = list(dict.fromkeys(row["row"] for row in found["rows"]))
    by_place = {(row["row"], row["at_once"]): row for row in found["rows"]}
    heading = f"{found['target']['name']}, {found['prompts']} prompts, up to {found['tokens']} tokens each"
    lines = [heading, found["processor"], *([found["note"]] if found["note"] else [])]
    lines.append(f"{'':14}" + "".join(f"{f'{count} at once':>30}" for count in counts))
    columns = f"{'accepted':>10}{'ms':>10}{'x off':>10}"
    lines.append(f"{'':14}" + columns * len(counts))
    lines.append(f"{'':14}" + f"{'a round':>10}{'a draft':>10}{'':>10}" * len(counts))
    for name in names:
        cells = [by_place[name, count] for count in counts]
        lines.append(f"{name:14}" + "".join(map(_cell, cells)))
    return lines


def _cell(row: Mapping[str, Any]) -> str:
    if row["row"] == "off":
        return f"{'':>10}{'':>10}{row['times_off']:10.2f}"
    return f"{row['accepted_a_round']:10.2f}{row['ms_a_draft']:10.2f}{row['times_off']:10.2f}"
