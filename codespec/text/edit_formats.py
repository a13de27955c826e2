"""The prompt formats of next-edit models, read from edit_formats.toml, and the prompts that clients write in them.

A format is data: the lines that a window has, the order and the spelling of the prompt's parts, and the ends of an
answer. `text.edit_prompt` assembles a prompt from it, and `text.edit_hunks` reads the answer. Clients spell a format's
control tokens as text. Only the tokens of the recognized format become ids; what else a prompt spells stays text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from codespec.api.config import EDIT_FORMATS
from codespec.text.tokenizer import TextTokenizer

Part = str | int  # text, or the id of a control token


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

    def split_markers(self, text: str, vocabulary: Mapping[str, int]) -> list[Part]:
        """Return a text with the format's control tokens as ids, if the vocabulary has them."""
        known = [re.escape(name) for name in self.markers if name in vocabulary]
        pieces = re.split(f"({'|'.join(known)})", text) if known else [text]
        return [vocabulary[piece] if number % 2 else piece for number, piece in enumerate(pieces)]


@cache
def edit_formats() -> Mapping[str, EditFormat]:
    """Return all formats by name, in the order in which models are recognized."""
    return {
        name: EditFormat(name=name, **_fields(table))
        for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
    }


def _fields(table: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return {**values, "reads": Reading(**_fields(table["reads"]))} if "reads" in table else values


def find_format(setting: str, model: str, tokenizer: TextTokenizer) -> EditFormat | str:
    """Return the format of a model by the setting `edit_format`, or the reason why there is none, as a clause.

    With "auto", a model has the first format whose pattern its name, a hub id or a file's name, contains.
    """
    assert setting in EDIT_FORMATS
    known = edit_formats()
    if setting == "none":
        return "edits are switched off by the setting edit_format"
    named = (found for found in known.values() if found.models and re.search(found.models, model, re.IGNORECASE))
    chosen = known[setting] if setting != "auto" else next(named, None)
    if chosen is None:
        return f"{model} was not trained for edits: serve a Sweep or Zeta model, or set edit_format to chat"
    missing = chosen.missing(tokenizer.vocab)
    if missing:
        return f"the vocabulary of {model} lacks {' and '.join(missing)}, which the format {chosen.name} needs"
    return chosen


def encode_parts(tokenizer: TextTokenizer, parts: Sequence[Part]) -> tuple[list[int], str]:
    """Return the ids of a prompt in parts, and its text without control tokens.

    Adjacent texts are encoded as one, because tokens may cross their border.
    """
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    ids = list(tokenizer.bos_ids)
    for number, part in enumerate(merged):
        ids += [part] if isinstance(part, int) else tokenizer.encode_inside(part, begins=not number)
    return ids, "".join(part for part in merged if isinstance(part, str))


@dataclass(frozen=True, slots=True)
class ReadyMadeEdit:
    """A client's prompt in a format. `prediction` is the answer that changes nothing, after the text already given.

    `stops` end an answer, besides control tokens.
    """

    form: EditFormat
    prompt: str
    prediction: str
    stops: tuple[str, ...]

    def ids(self, tokenizer: TextTokenizer) -> list[int] | None:
        """Return the prompt's ids, or None if the vocabulary lacks the format's control tokens."""
        if self.form.missing(tokenizer.vocab):
            return None
        return encode_parts(tokenizer, self.form.split_markers(self.prompt, tokenizer.vocab))[0]


def read_edit_prompt(prompt: str) -> ReadyMadeEdit | None:
    """Return a next-edit prompt by its format, or None for any other text."""
    for form in edit_formats().values():
        reading = form.reads
        if reading is None or not (prompt.startswith(reading.begins) and prompt.rstrip().endswith(reading.ends)):
            continue
        found = _find_current(reading, prompt)
        if found is None:
            continue
        current, given = (text.partition("\n")[2] for text in found) if reading.headed else (found[0], "")
        text = current.replace(form.mark, "")
        same = reading.answer.replace("{current}", text).removeprefix(given) if text.startswith(given) else ""
        return ReadyMadeEdit(form, prompt, same, form.stops if reading.stops is None else reading.stops)
    return None


def predict_region(message: str) -> str:
    """Return the lines that an answer to a chat message repeats, or "" if it marks none as to be edited."""
    form = edit_formats()["zeta-1"]
    assert form.reads is not None
    found = _find_current(form.reads, message)
    return found[0].replace(form.mark, "") if found is not None else ""


def _find_current(reading: Reading, prompt: str) -> tuple[str, str] | None:
    """Return the block with the current text, and what follows it."""
    end = prompt.rfind(reading.closes)
    start = prompt.rfind(reading.opens, 0, max(0, end))
    return (prompt[start + len(reading.opens) : end], prompt[end + len(reading.closes) :]) if start >= 0 else None
