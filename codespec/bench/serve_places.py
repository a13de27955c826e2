"""What a daemon is asked in a benchmark: places with text on both sides, and long files in which somebody types.

All chosen by rule from held-out code, or places from a prompts file. Knows files and bodies; knows no daemon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from codespec.bench.policy_spots import HELD_OUT, spread_numbers
from codespec.bench.prompts import BenchPrompt, read_prompts
from codespec.corpus.documents import Document
from codespec.corpus.gaps import line_gaps, spread
from codespec.corpus.held_out import HeldOut, read_held_out
from codespec.errors import ConfigError
from codespec.server.dialects.codespec import MOST_SIDE

LEAST_LINE = 12  # characters that are typed, at least


def find_places(held_out: Path | None, prompts: Path | None, count: int) -> tuple[list[BenchPrompt], str]:
    """`count` places, and what to tell of them: lines in all languages in turn, or a file's prompts, evenly spread.

    Raises TrainingError or ConfigError for a file that can't be read or holds too little.
    """
    if prompts is not None:
        given = read_prompts(prompts)
        places, note = [given[number] for number in spread_numbers(len(given), count)], "prompts of a file"
    else:
        held = _read(held_out)
        rows = [_places(documents, math.ceil(count / len(held.rows))) for documents in held.rows.values()]
        longest = max(map(len, rows))
        places = [row[turn] for turn in range(longest) for row in rows if turn < len(row)][:count]
        note = held.note
    if len(places) < 2:
        raise ConfigError("There are fewer than two places to complete: name a file with more.")
    return places, note


def _places(documents: Sequence[Document], count: int) -> list[BenchPrompt]:
    return [BenchPrompt(gap.prefix, gap.suffix, gap.path) for gap in spread(documents, count, line_gaps(0))]


def _read(held_out: Path | None) -> HeldOut:
    return read_held_out(held_out or HELD_OUT, named=held_out is not None)


@dataclass(frozen=True, slots=True)
class Typing:
    """A file in which a line is typed: the cursor goes from `begin` to `end`."""

    name: str
    text: str
    begin: int
    end: int

    def bodies(self, keystrokes: int) -> Iterator[dict[str, Any]]:
        """One request a keystroke, as an editor sends it: what is typed so far, and the lines below."""
        for version in range(min(keystrokes, self.end - self.begin)):
            cursor = self.begin + version
            start = max(0, cursor - MOST_SIDE)
            yield {
                "document": self.name,
                "version": version,
                "path": self.name,
                "prefix": self.text[start:cursor],
                "prefix_offset": start,
                "suffix": self.text[self.end : self.end + MOST_SIDE],
            }


def find_typing(held_out: Path | None, count: int) -> list[Typing]:
    """The longest files of the held-out code, at most one a language first; the line is the first long one behind the
    middle.
    """
    rows = _read(held_out).rows.values()
    ordered = [sorted(documents, key=lambda d: (-len(d.text), d.path)) for documents in rows]
    deepest = max(map(len, ordered))
    files = [row[depth] for depth in range(deepest) for row in ordered if depth < len(row)]
    found = (typing for document in files if (typing := _typing(document)) is not None)
    return list(islice(found, count))


def _typing(document: Document) -> Typing | None:
    lines = document.text.splitlines(keepends=True)
    for number in range(len(lines) // 2, len(lines)):
        body = lines[number].strip()
        if len(body) >= LEAST_LINE:
            above = sum(map(len, lines[:number]))
            begin = above + lines[number].index(body)
            return Typing(f"{document.package}/{document.path}", document.text, begin, begin + len(body))
    return None
