"""Where somebody types in a benchmark: lines in the middle of held-out files, chosen by rule, or a prompt's last lines.

Knows files; knows no editor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from urllib.parse import quote

from codespec_grammars import find_language

from codespec.bench.policy_spots import HELD_OUT, spread_numbers
from codespec.bench.prompts import BenchPrompt, read_prompts
from codespec.corpus.documents import Document
from codespec.corpus.gaps import COMMENTS
from codespec.corpus.held_out import read_held_out
from codespec.errors import ConfigError

LINES = 3
CHARACTERS = (60, 180)  # that are typed at a place
LEAST_ABOVE = 20  # lines
MOST_UNIT = "\uffff"  # what is typed counts alike in UTF-16 and in code points


@dataclass(frozen=True, slots=True)
class TypingPlace:
    """A file in which the characters from `begin` to `end` are typed."""

    name: str
    language: str
    text: str
    begin: int
    end: int

    @property
    def uri(self) -> str:
        """What an editor calls it."""
        return f"file:///typed/{quote(self.name)}"

    @property
    def typed(self) -> str:
        """What is typed."""
        return self.text[self.begin : self.end]

    def after(self, count: int) -> str:
        """The whole file when so many characters are typed."""
        return self.text[: self.begin + count] + self.text[self.end :]


def find_typing_places(held_out: Path | None, prompts: Path | None, count: int) -> tuple[list[TypingPlace], str]:
    """`count` places or fewer, and what to tell of them: files in all languages in turn, or a file's prompts.

    Raises TrainingError or ConfigError for a file that can't be read or holds no place.
    """
    if prompts is not None:
        given = read_prompts(prompts)
        chosen = (_from_prompt(given[number], number) for number in spread_numbers(len(given), count))
        places, note = [place for place in chosen if place is not None], "prompts of a file: their last lines are typed"
    else:
        held = read_held_out(held_out or HELD_OUT, named=held_out is not None)
        rows = [_spread(documents, math.ceil(count / len(held.rows))) for documents in held.rows.values()]
        places, note = [place for turn in zip_longest(*rows) for place in turn if place is not None][:count], held.note
    if not places:
        raise ConfigError("There is no place to type in: name a file with longer texts.")
    return places, note


def _spread(documents: Sequence[Document], count: int) -> list[TypingPlace]:
    """One place a file, in files evenly spread over a row."""
    found = [place for document in documents if (place := _in_document(document)) is not None]
    return [found[number] for number in spread_numbers(len(found), count)]


def _in_document(document: Document) -> TypingPlace | None:
    """The first LINES from the middle on that hold something and are neither too short nor too long together."""
    lines = document.text.splitlines(keepends=True)
    if "\r" in document.text:
        return None
    name = f"{document.package}/{document.path}".replace(":", "/")
    for number in range(max(LEAST_ABOVE, len(lines) // 2), len(lines) - LINES):
        place = _at(name, document.language, lines, number)
        if place is not None and CHARACTERS[0] <= len(place.typed) <= CHARACTERS[1]:
            return place
    return None


def _at(name: str, language: str, lines: Sequence[str], number: int) -> TypingPlace | None:
    """LINES lines from a line's first sign on; None where one is empty, a comment, or needs surrogates."""
    chosen = lines[number : number + LINES]
    bodies = [line.strip() for line in chosen]
    if any(not body or body.startswith(COMMENTS) or max(body) > MOST_UNIT for body in bodies):
        return None
    first = len(chosen[0]) - len(chosen[0].lstrip())
    begin = sum(map(len, lines[:number])) + first
    end = begin + len("".join(chosen)) - first
    return TypingPlace(name, language, "".join(lines), begin, end - chosen[-1].endswith("\n"))


def _from_prompt(prompt: BenchPrompt, number: int) -> TypingPlace | None:
    """The prompt's last lines are typed; None where it has too few."""
    lines = prompt.prefix.splitlines(keepends=True)
    if len(lines) <= LINES or "\r" in prompt.prefix:
        return None
    name = f"prompt{number}/{prompt.path or 'prompt.py'}"
    return _at(name, find_language("", name), [*lines, prompt.suffix], len(lines) - LINES)


def in_turn(places: Sequence[TypingPlace], parts: int) -> Iterator[tuple[TypingPlace, ...]]:
    """Groups of `parts` places, each place once."""
    return zip(*(places[part::parts] for part in range(parts)), strict=False)
