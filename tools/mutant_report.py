"""The table of a mutation run, as JSON and as Markdown. Knows verdicts as dictionaries; runs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codespec.models.processor import processor

COMMAND = "make mutants"


def write_report(file: Path, head: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> None:
    """FILE as JSON, and the same beside it to be read."""
    content = {"command": COMMAND, **head, "processor": processor().label, **summary(verdicts)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(as_markdown(content), encoding="utf-8")


def summary(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many were tried and caught by room, the planted ones one by one, and of the others those that survived."""
    rooms: dict[str, dict[str, Any]] = {}
    for verdict in verdicts:
        room = rooms.setdefault(verdict["room"], {"tried": 0, "caught": 0})
        room["tried"] += 1
        room["caught"] += bool(verdict["caught_by"])
    sampled = [room for name, room in rooms.items() if name != "planted"]
    tried, caught = (sum(room[key] for room in sampled) for key in ("tried", "caught"))
    return {
        "rooms": rooms,
        "share": round(caught / tried, 3) if tried else None,
        "planted": [_short(verdict) for verdict in verdicts if verdict["room"] == "planted"],
        "survivors": [_short(verdict) for verdict in verdicts if not verdict["caught_by"]],
    }


def _short(verdict: Mapping[str, Any]) -> dict[str, Any]:
    return {name: verdict[name] for name in ("name", "file", "line", "caught_by", "seconds")}


def as_markdown(content: Mapping[str, Any]) -> str:
    """The report as a page."""
    share = "" if content["share"] is None else f" {content['share']:.0%} of the sample were caught."
    lines = [
        "# Planted faults, and who notices",
        "",
        f"`{content['command']}`, {content['date']}, commit {content['commit']}, seed {content['seed']}.{share}",
        "",
        "| room | tried | caught | |",
        "|---|---|---|---|",
        *(
            f"| {name} | {room['tried']} | {room['caught']} | {room['caught'] / room['tried']:.0%} |"
            for name, room in content["rooms"].items()
        ),
        "",
        "## Planted by hand",
        "",
        "| fault | caught by |",
        "|---|---|",
        *(f"| {_cell(each['name'])} | {_cell(each['caught_by'] or '**nobody**')} |" for each in content["planted"]),
        "",
        "## Survivors",
        "",
        "| where | fault |",
        "|---|---|",
        *(f"| {each['file']}:{each['line']} | {_cell(each['name'])} |" for each in content["survivors"]),
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")
