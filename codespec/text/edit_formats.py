"""The prompt formats of next-edit models: which model has which, and their parts, read from edit_formats.toml.

A format is data: the lines that a window has, the order and the spelling of the prompt's parts, and the ends of an
answer. `text.edit_prompt` assembles a prompt from it, and `text.edit_hunks` reads the answer.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from codespec.api.serve_config import EDIT_FORMATS
from codespec.text.tokenizer import TextTokenizer

_FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a ready-made prompt of a format is recognized: its beginning, its end, and where the current text is.

    The current text is the last one between `opens` and `closes`. With `headed`, the rest of the line after each of
    them is a path, and the prompt's text after `closes` is the beginning of the answer. `answer` is an answer in which
    nothing changes, and `stops` end an answer, if they are not the format's: clients read the end themselves.
    """

    opens: str
    closes: str
    begins: str = ""
    ends: str = ""
    headed: bool = False
    answer: str = "{current}"
    stops: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EditFormat:
    """One format; edit_formats.toml describes the fields. Line counts exclude the row in focus."""

    name: str
    prompt: str
    markers: tuple[str, ...]
    above: int
    below: int
    models: str = ""
    needs: tuple[str, ...] = ()
    around: int = 0
    changes: int = 0
    last_apart: bool = False
    mark: str = ""
    prefill: int = 0
    keeps_end: bool = False
    stops: tuple[str, ...] = ()
    nothing: str = ""
    history: str = ""
    change: str = ""
    predicted: str = ""
    snippets: str = ""
    snippet: str = ""
    diagnostics: str = ""
    problem: str = ""
    reads: Reading | None = None

    def missing(self, vocabulary: Mapping[str, int]) -> tuple[str, ...]:
        """Return the control tokens that a vocabulary lacks for this format."""
        return tuple(name for name in self.needs or self.markers if name not in vocabulary)


@cache
def edit_formats() -> Mapping[str, EditFormat]:
    """Return all formats by name, in the order in which models are recognized."""
    tables = tomllib.loads(_FILE.read_text("utf-8"))
    known = {item.name for item in fields(EditFormat)}
    assert all(table.keys() <= known for table in tables.values())
    tuples = ("markers", "needs", "stops")
    made: dict[str, EditFormat] = {}
    for name, table in tables.items():
        values: dict[str, Any] = {key: tuple(value) if key in tuples else value for key, value in table.items()}
        if "reads" in table:
            reads: dict[str, Any] = {key: tuple(v) if key in tuples else v for key, v in table["reads"].items()}
            values["reads"] = Reading(**reads)
        made[name] = EditFormat(name=name, **values)
    return made


def find_format(setting: str, model: str, tokenizer: TextTokenizer) -> EditFormat | str:
    """Return the format of a model by the setting `edit_format`, or the reason why there is none, as a clause.

    With "auto", a model has the first format whose pattern its name, a hub id or a file's name, contains.
    """
    assert setting in EDIT_FORMATS
    known = edit_formats()
    if setting == "none":
        return "edits are switched off by the setting edit_format"
    named = [found for found in known.values() if found.models and re.search(found.models, model, re.IGNORECASE)]
    chosen = known[setting] if setting != "auto" else next(iter(named), None)
    if chosen is None:
        return f"{model} was not trained for edits: serve a Sweep or Zeta model, or set edit_format to chat"
    missing = chosen.missing(tokenizer.vocab)
    if missing:
        return f"the vocabulary of {model} lacks {' and '.join(missing)}, which the format {chosen.name} needs"
    return chosen
