"""Write the results of a mutation run as JSON and as a Markdown table, from verdicts as dictionaries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from codespec.store.processor import processor

COMMAND = "make mutants"


Judged = Mapping[tuple[str, int, str], str]  # (file, line, fault) → reason why no test can detect it


def write_report(
    file: Path, head: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]], judged: Judged = MappingProxyType({})
) -> None:
    """Write the report to `file` as JSON, and as Markdown beside it."""
    content = {"command": COMMAND, **head, "processor": processor().label, **summary(verdicts, judged)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(as_markdown(content), encoding="utf-8")


def summary(verdicts: Sequence[Mapping[str, Any]], judged: Judged = MappingProxyType({})) -> dict[str, Any]:
    """Count tried and caught faults by room, and list the planted faults and the survivors.

    A survivor that no test can detect comes with the reason. Shares are of the sample: of all faults, and of the
    detectable ones.
    """
    rooms: dict[str, dict[str, Any]] = {}
    for verdict in verdicts:
        room = rooms.setdefault(verdict["room"], {"tried": 0, "caught": 0})
        room["tried"] += 1
        room["caught"] += bool(verdict["caught_by"])
    sampled = [room for name, room in rooms.items() if name != "planted"]
    tried, caught = (sum(room[key] for room in sampled) for key in ("tried", "caught"))
    survivors = [verdict for verdict in verdicts if not verdict["caught_by"]]
    why = [judged.get((verdict["file"], verdict["line"], verdict["name"]), "") for verdict in survivors]
    detectable = tried - sum(map(bool, why))
    return {
        "rooms": rooms,
        "share": round(caught / tried, 3) if tried else None,
        "share_of_detectable": round(caught / detectable, 3) if detectable else None,
        "planted": [_short(verdict) for verdict in verdicts if verdict["room"] == "planted"],
        "survivors": [{**_short(verdict), "why": reason} for verdict, reason in zip(survivors, why, strict=True)],
    }


def _short(verdict: Mapping[str, Any]) -> dict[str, Any]:
    return {name: verdict[name] for name in ("name", "file", "line", "caught_by", "seconds")}


def as_markdown(content: Mapping[str, Any]) -> str:
    """Return the report as a Markdown page."""
    share = ""
    if content["share"] is not None and content["share_of_detectable"] is not None:
        share = f" {content['share']:.0%} of the sample were caught, "
        share += f"{content['share_of_detectable']:.0%} of the faults that a test can detect."
    lines = [
        "# Planted faults and the tests that catch them",
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
        "## Faults planted by hand",
        "",
        "| fault | caught by |",
        "|---|---|",
        *(f"| {_name(each)} | {_cell(each['caught_by'] or '**nothing**')} |" for each in content["planted"]),
        "",
        "## Survivors",
        "",
        "| where | fault | why no test can detect it |",
        "|---|---|---|",
        *(f"| {each['file']}:{each['line']} | {_name(each)} | {each['why']} |" for each in content["survivors"]),
    ]
    return "\n".join(lines) + "\n"


def _name(entry: Mapping[str, Any]) -> str:
    """Return a fault's name, marked if its code was removed after the run (`gone`)."""
    return _cell(entry["name"]) + (" (code removed)" if entry.get("gone") else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")
