"""Find the language at a cursor inside another one's file: a script in a page, a fence in a text, a page around PHP.

The table of hosts and their regions is `injections.toml`. Regions are found by their marks alone, from the beginning of
the text, since a page in progress is rarely whole. PHP is a host the other way round: what is outside its tags is a
page, in which the code between the tags is blank.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePath
from typing import NamedTuple

from codespec_grammars.language import find_language, languages

MAX_DEPTH = 3  # nested regions: a script in a page in a fence
MAX_BEHIND = 1 << 16  # bytes of the suffix that are searched for the end of a region
_PHP = re.compile(rb"<\?(?:php\b|=)")
# What ends PHP's code. Strings and comments of several lines end it nowhere, a comment to the end of its line does.
_PHP_END = re.compile(
    rb"""(?P<end>\?>)|/\*(?s:.)*?(?:\*/|\Z)|(?://|\#(?!\[))(?:(?!\?>)[^\n])*+"""
    rb"""|"(?s:\\.|[^"\\])*+(?:"|\Z)|'(?s:\\.|[^'\\])*+(?:'|\Z)"""
)
_VISIBLE = re.compile(rb"[^\s]")


class Place(NamedTuple):
    """The text around a cursor in one language, "" if that is unknown. `inside`: within another language's file."""

    language: str
    prefix: bytes
    suffix: bytes
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """A kind of region; the fields are those of the table."""

    open: str
    close: str
    language: str
    named: str = ""
    names: dict[str, str] = field(default_factory=dict)
    fence: bool = False

    def closer(self, opened: re.Match[bytes]) -> re.Pattern[bytes]:
        """Return the pattern that ends the region of an opener."""
        marks = opened[2] if self.fence else b""
        fence = f"{re.escape(marks[:1].decode())}{{{len(marks)},}}"
        return _compiled(self.close.replace("{fence}", fence))

    def language_of(self, opened: re.Match[bytes]) -> str:
        """Return the language of a region, or "" if it is the host's own text or unknown."""
        found = _compiled(self.named).search(opened[1]) if self.named else None
        if found is None:
            return self.language
        name = found[1].decode("utf-8", "replace").lower()
        return self.names.get(name, find_language(name, f"x.{name}"))


@dataclass(frozen=True, slots=True)
class Host:
    """A language whose files hold other ones. `skip` are openers and closers of text without regions."""

    ids: tuple[str, ...]
    files: tuple[str, ...]
    skip: tuple[tuple[str, str], ...]
    regions: tuple[Region, ...]


def find_place(language_id: str, path: str, prefix: bytes, suffix: bytes, known: str = "") -> Place:
    """Return the language at the cursor of a file, and the part of the text around it that is in it.

    `known` is the language that somebody found who saw more of the file; it counts if the text shows no region.
    """
    name = find_language(language_id, path)
    place = _inside(_host(language_id, path) or name, Place(name, prefix, suffix))
    if not place.inside and known in languages() and known != name:
        return Place(known, prefix, suffix, inside=True)
    return place


def _inside(host: str, place: Place, depth: int = 0) -> Place:
    inner = _page(place) if host == "php" else _region(host, place)
    if inner is None or depth == MAX_DEPTH:
        return place
    return _inside(inner.language, inner, depth + 1)


def _host(language_id: str, path: str) -> str:
    """Return the host with that id or file name, or "" for others."""
    file = PurePath(path).name
    by_id = (name for name, host in _hosts().items() if language_id in host.ids)
    by_file = (name for name, host in _hosts().items() if any(fnmatchcase(file, glob) for glob in host.files))
    return next(by_id, next(by_file, "") if not find_language(language_id) else "")


def _region(name: str, place: Place) -> Place | None:
    """Return the region around the cursor in a host's text, or None for the host's own part."""
    host = _hosts().get(name)
    if host is None:
        return None
    marks, at = _Marks(host, place.prefix), 0
    while (mark := marks.next(at)) is not None:
        region, opener = mark
        closer = region.closer(opener) if isinstance(region, Region) else region
        closed = closer.search(place.prefix, opener.end())
        if closed is None:
            language = region.language_of(opener) if isinstance(region, Region) else ""
            return _cut(language, place.prefix[opener.end() :], place.suffix, closer) if language else None
        at = closed.end()
    return None if at else _begun_above(host, place)


class _Marks:
    """The openers of a host's regions in a text, and of what it skips, in order. Each pattern reads the text once."""

    def __init__(self, host: Host, text: bytes) -> None:
        kinds: list[tuple[Region | re.Pattern[bytes], str]] = [(each, each.open) for each in host.regions]
        kinds += [(_compiled(end), begin) for begin, end in host.skip]
        self._text = text
        self._ahead = [(kind, _compiled(opener), _compiled(opener).search(text)) for kind, opener in kinds]

    def next(self, at: int) -> tuple[Region | re.Pattern[bytes], re.Match[bytes]] | None:
        """Return the next opener at or after `at`: with its region, or with the closer of what is skipped."""
        self._ahead = [
            (kind, pattern, found if found is None or found.start() >= at else pattern.search(self._text, at))
            for kind, pattern, found in self._ahead
        ]
        marks = [(kind, found) for kind, _, found in self._ahead if found is not None]
        return min(marks, key=lambda mark: mark[1].start(), default=None)


def _begun_above(host: Host, place: Place) -> Place | None:
    """Return the region that begins above the text: the next mark behind the cursor closes it."""
    behind = place.suffix[:MAX_BEHIND]
    first = _Marks(host, behind).next(0)
    for region in (each for each in host.regions if not each.fence and each.language and each.named):
        closed = _compiled(region.close).search(behind)
        if closed is not None and (first is None or closed.start() < first[1].start()):
            return Place(region.language, place.prefix, behind[: closed.start()], inside=True)
    return None


def _cut(language: str, prefix: bytes, suffix: bytes, closer: re.Pattern[bytes]) -> Place:
    closed = closer.search(suffix[:MAX_BEHIND])
    return Place(language, prefix, suffix[: closed.start()] if closed is not None else suffix, inside=True)


def _page(place: Place) -> Place | None:
    """Return the page around a cursor outside of PHP's tags, with the code between tags blank; None inside of them."""
    text, parts, at, code = place.prefix, list[bytes](), 0, False
    if not _PHP.search(text) and not text.lstrip().startswith(b"<"):
        return None  # it may be code that begins above the text
    while (mark := _end_of_code(text, at) if code else _PHP.search(text, at)) is not None:
        parts.append(_blank(text[at : mark.end()]) if code else text[at : mark.start()] + _blank(mark[0]))
        at, code = mark.end(), not code
    if code:
        return None
    return Place("html", b"".join((*parts, text[at:])), place.suffix, inside=True)


def _end_of_code(text: bytes, at: int) -> re.Match[bytes] | None:
    return next((mark for mark in _PHP_END.finditer(text, at) if mark["end"]), None)


def _blank(text: bytes) -> bytes:
    return _VISIBLE.sub(b" ", text)


@cache
def _hosts() -> dict[str, Host]:
    table = tomllib.loads((Path(__file__).parent / "injections.toml").read_text(encoding="utf-8"))
    hosts = dict[str, Host]()
    for name, values in table.items():
        like = table.get(values.get("like", ""), {})
        regions = (*values["regions"], *like.get("regions", ()))
        skip = (*values.get("skip", ()), *like.get("skip", ()))
        made = tuple(Region(**each) for each in regions)
        hosts[name] = Host(tuple(values["ids"]), tuple(values["files"]), tuple(map(tuple, skip)), made)
    return hosts


@cache
def _compiled(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())
