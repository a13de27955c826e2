"""The files to rewrite: the first lines of held-out Python, five small rule-based edits in each, and an unrelated file
as a useless prediction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from codespec.errors import ConfigError
from codespec_lab.bench.sites import read_held_out_code
from codespec_lab.corpus.documents import Document

LANGUAGE = "python"
PROMPT_LINES = 40  # from the end of the other file: enough context to draft from the start
PROMPT = "{}\n# {}, written again with a few small edits:\n"
_WORD = re.compile(r"[A-Za-z_]\w*")
_INDENT = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A file to rewrite: `old` becomes `new`; `other` is another file."""

    name: str
    prompt: str
    old: str
    new: str
    other: str


def find_rewrites(
    held_out: Path | None, count: int, lines: int, fits: Callable[[Rewrite], bool]
) -> tuple[list[Rewrite], str]:
    """Return the first `count` files that have `lines` lines and pass `fits`, and a note for the report. Raise
    ConfigError if there are fewer, TrainingError if a file of held-out code can't be read.
    """
    code = read_held_out_code(held_out)
    documents = next((found for name, found in code.rows.items() if name.lower() == LANGUAGE), None)
    documents = documents or next(iter(code.rows.values()))
    rewrites = list(islice(filter(fits, _rewrites(documents, lines)), count))
    if len(rewrites) < count:
        raise ConfigError(
            f"{len(rewrites)} held-out files have {lines} lines and fit the context, {count} are wanted: lower --lines "
            "or --limit."
        )
    return rewrites, code.note


def _rewrites(documents: Sequence[Document], lines: int) -> Iterator[Rewrite]:
    long = [document for document in documents if document.text.count("\n") >= lines]
    for other, document in pairwise(long):
        old = "".join(document.text.splitlines(keepends=True)[:lines])
        before = "".join(other.text.splitlines(keepends=True)[-PROMPT_LINES:])
        template = "".join(other.text.splitlines(keepends=True)[:lines])
        name = f"{document.package}/{document.path}"
        yield Rewrite(name, PROMPT.format(before, name), old, edit(old), template)


def edit(text: str) -> str:
    """Make five small, evenly spread edits: extend a name, add a line, delete one, append to one, replace one."""
    lines = text.splitlines(keepends=True)
    places = [_next_code(lines, (2 * number + 1) * len(lines) // 10) for number in range(5)]
    edits = (_rename, _insert, _delete, _append, _replace)
    for place, change in reversed(list(zip(places, edits, strict=True))):
        lines[place : place + 1] = change(lines[place])
    return "".join(lines)


def _next_code(lines: Sequence[str], start: int) -> int:
    """Return the index of the first line with a word at or after `start`, or of the last line."""
    return next((number for number in range(start, len(lines)) if _WORD.search(lines[number])), len(lines) - 1)


def _rename(line: str) -> list[str]:
    name = max(_WORD.findall(line), key=len, default="")
    return [line.replace(name, f"{name}_new") if name else line]


def _insert(line: str) -> list[str]:
    return [f"{_indent(line)}checked = True  # as it was asked for\n", line]


def _delete(_: str) -> list[str]:
    return []


def _append(line: str) -> list[str]:
    return [line.rstrip("\n") + "  # changed\n"]


def _replace(line: str) -> list[str]:
    return [f"{_indent(line)}return None\n"]


def _indent(line: str) -> str:
    return _INDENT.match(line)[0].rstrip("\n")  # type: ignore[index]  # it matches any text
