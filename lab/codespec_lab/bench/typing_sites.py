"""Sites to type at: lines in the middle of held-out files, chosen by rule, or the last lines of prompts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

from codespec_grammars import find_language

from codespec.api.limits import MAX_SIDE
from codespec.errors import ConfigError
from codespec_lab.bench.sites import Site, read_held_out_code, read_prompts, spread_numbers
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.gaps import COMMENTS

MIN_LINE = 12  # characters of a line to type
LINES = 3  # lines to type at a site
CHARACTERS = (60, 180)  # least and most characters to type at a site
MIN_ABOVE = 20  # lines above a site
MAX_UNIT = "\uffff"  # the last character that is one UTF-16 unit


@dataclass(frozen=True, slots=True)
class TypingSite:
    """A file in which the characters from `begin` to `end` are to be typed."""

    name: str
    language: str
    text: str
    begin: int
    end: int

    @property
    def uri(self) -> str:
        """Return the document's URI in an editor."""
        return f"file:///typed/{quote(self.name)}"

    @property
    def typed(self) -> str:
        """Return the text to type."""
        return self.text[self.begin : self.end]

    def after(self, count: int) -> str:
        """Return the whole file after `count` characters are typed."""
        return self.text[: self.begin + count] + self.text[self.end :]


def keystroke_bodies(site: TypingSite, keystrokes: int) -> Iterator[dict[str, Any]]:
    """Yield one request per keystroke, as an editor sends it: the text typed so far, and the lines below."""
    for version in range(min(keystrokes, site.end - site.begin)):
        yield body_at(site, site.name, version, version)


def body_at(site: TypingSite, document: str, version: int, typed: int) -> dict[str, Any]:
    """Return the request after `typed` characters, as an editor sends it."""
    cursor = site.begin + typed
    start = max(0, cursor - MAX_SIDE)
    return {
        "document": document,
        "version": version,
        "path": site.name,
        "prefix": site.text[start:cursor],
        "prefix_offset": start,
        "suffix": site.text[site.end : site.end + MAX_SIDE],
    }


def keystroke_sites(held_out: Path | None, count: int) -> list[TypingSite]:
    """Return sites in the longest files of the held-out code, the longest of each language first. The line to type is
    the first long one from the middle of the file.
    """
    rows = read_held_out_code(held_out).rows.values()
    longest_first = (sorted(documents, key=lambda d: (-len(d.text), d.path)) for documents in rows)
    files = (document for turn in zip_longest(*longest_first) for document in turn if document is not None)
    found = (site for document in files if (site := _long_line(document)) is not None)
    return list(islice(found, count))


def _long_line(document: Document) -> TypingSite | None:
    lines = document.text.splitlines(keepends=True)
    for number in range(len(lines) // 2, len(lines)):
        body = lines[number].strip()
        if len(body) >= MIN_LINE:
            begin = sum(map(len, lines[:number])) + lines[number].index(body)
            name = f"{document.package}/{document.path}"
            return TypingSite(name, document.language, document.text, begin, begin + len(body))
    return None


def typing_sites(held_out: Path | None, prompts: Path | None, count: int) -> tuple[list[TypingSite], str]:
    """Return up to `count` sites and a note for the report: files in all languages in turn, or a file's prompts. Raise
    TrainingError or ConfigError for a file that can't be read or has no site.
    """
    if prompts is not None:
        sites_of_file = read_prompts(prompts)
        chosen = (_in_prompt(sites_of_file[number], number) for number in spread_numbers(len(sites_of_file), count))
        sites, note = [site for site in chosen if site is not None], "prompts of a file: their last lines are typed"
    else:
        code = read_held_out_code(held_out)
        rows = [_in_documents(documents, math.ceil(count / len(code.rows))) for documents in code.rows.values()]
        sites, note = [site for turn in zip_longest(*rows) for site in turn if site is not None][:count], code.note
    if not sites:
        raise ConfigError("There is no site to type at: name a file with longer texts.")
    return sites, note


def _in_documents(documents: Sequence[Document], count: int) -> list[TypingSite]:
    """Return one site in each of `count` files, evenly spread over the documents."""
    found = [site for document in documents if (site := _in_document(document)) is not None]
    return [found[number] for number in spread_numbers(len(found), count)]


def _in_document(document: Document) -> TypingSite | None:
    """Return the first LINES lines of code, from the middle of the file, with a total length within CHARACTERS."""
    lines = document.text.splitlines(keepends=True)
    if "\r" in document.text:
        return None
    name = f"{document.package}/{document.path}".replace(":", "/")
    for number in range(max(MIN_ABOVE, len(lines) // 2), len(lines) - LINES):
        site = _at(name, document.language, lines, number)
        if site is not None and CHARACTERS[0] <= len(site.typed) <= CHARACTERS[1]:
            return site
    return None


def _at(name: str, language: str, lines: Sequence[str], number: int) -> TypingSite | None:
    """Return LINES lines from a line's first character, or None if one is empty, a comment, or needs surrogates."""
    chosen = lines[number : number + LINES]
    bodies = [line.strip() for line in chosen]
    if any(not body or body.startswith(COMMENTS) or max(body) > MAX_UNIT for body in bodies):
        return None
    first = len(chosen[0]) - len(chosen[0].lstrip())
    begin = sum(map(len, lines[:number])) + first
    end = begin + len("".join(chosen)) - first
    return TypingSite(name, language, "".join(lines), begin, end - chosen[-1].endswith("\n"))


def _in_prompt(prompt: Site, number: int) -> TypingSite | None:
    """Return a prompt's last lines, or None if it has too few."""
    lines = prompt.prefix.splitlines(keepends=True)
    if len(lines) <= LINES or "\r" in prompt.prefix:
        return None
    name = f"prompt{number}/{prompt.path or 'prompt.py'}"
    return _at(name, find_language("", name), [*lines, prompt.suffix], len(lines) - LINES)
