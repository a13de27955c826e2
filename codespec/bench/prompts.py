"""Where benchmarks take their prompts from: a JSON-lines file, or fixed cut points in the machine's standard library.

The cut points lie in parts that no shipped model was trained on, and follow a rule, so nobody chooses them. Knows
files.
"""

from __future__ import annotations

import gzip
import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from codespec.corpus.sources import HELD_OUT_STDLIB
from codespec.errors import ConfigError

MIN_LINES = 60
PREFIX_LINES = 40


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A place to complete: the text before it, perhaps the text after it, and a file name."""

    prefix: str
    suffix: str = ""
    path: str = ""


def read_prompts(file: Path) -> list[BenchPrompt]:
    """One JSON object a line with `prompt` (perhaps `suffix`, `path`); .gz is unpacked. ConfigError names the line."""
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
            return [_parse(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The prompts file {file} can't be read ({error}): check the path.") from error


def stdlib_prompts(count: int) -> list[BenchPrompt]:
    """`count` places, evenly spread over the held-out modules of the standard library in alphabetical order.

    The rule: in each module of at least MIN_LINES lines, the first line from the middle on that is code; the cursor is
    behind half of what is written on it. The prefix is the PREFIX_LINES lines before, the suffix as many after.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(file for name in HELD_OUT_STDLIB for file in (root / name).rglob("*.py") if "test" not in file.parts)
    places = [place for file in files if (place := _cut(root, file)) is not None]
    if not places:
        raise ConfigError("This Python has no standard library source to take prompts from: pass --prompts FILE.")
    step = max(1, len(places) // count)
    return places[::step][:count]


def _cut(root: Path, file: Path) -> BenchPrompt | None:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    if len(lines) < MIN_LINES:
        return None
    for number in range(len(lines) // 2, len(lines)):
        body = lines[number].strip()
        if len(body) >= 8 and not body.startswith(("#", '"', "'")):
            column = len(lines[number]) - len(lines[number].lstrip()) + len(body) // 2
            before = "".join(lines[max(0, number - PREFIX_LINES) : number]) + lines[number][:column]
            after = lines[number][column:] + "".join(lines[number + 1 : number + 1 + PREFIX_LINES])
            return BenchPrompt(before, after, str(file.relative_to(root)))
    return None


def _parse(file: Path, number: int, line: str) -> BenchPrompt:
    try:
        item = json.loads(line)
        return BenchPrompt(item["prompt"], item.get("suffix", ""), item.get("path", ""))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}, line {number}: not a JSON object with `prompt`: mend that line.") from error
