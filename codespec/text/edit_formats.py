"""The prompt formats of next-edit models: load the formats, recognize clients' prompts, and parse models' answers.

The file edit_formats.toml defines each format: the lines of the window to rewrite, the parts of a prompt, and the texts
that end an answer. If a client's prompt contains control tokens as text, only the control tokens of the prompt's format
are converted to token ids.

A model's answer is a new version of the lines in the window. `AnswerReader` compares whole lines and returns each hunk
as soon as the answer matches the old lines again. A match requires two equal lines with letters or any three equal
lines, because blank lines and lines of brackets occur everywhere.
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
SURE_LINES, SURE_WITH_LETTERS = 3, 2  # equal lines that end a difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The texts that identify a client's prompt of one format."""

    opens: str  # the marker before the current text of the window, which is the last text between the markers
    closes: str  # the marker after it
    begins: str = ""  # text at the beginning of the prompt
    ends: str = ""  # text at the end of the prompt
    headed: bool = False  # a path follows each marker on its line, and the answer begins after the line of `closes`
    answer: str = "{current}"  # template of an answer that changes nothing
    stops: tuple[str, ...] | None = None  # texts that end an answer; None: those of `EditFormat.stops`


@dataclass(frozen=True, slots=True, kw_only=True)
class EditFormat:
    """A prompt format with the fields of edit_formats.toml. `above` and `below` do not count the row to edit."""

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
        """Return the control tokens that the format requires but the vocabulary lacks."""
        return tuple(name for name in self.needs or self.markers if name not in vocabulary)

    def split_markers(self, text: str, vocabulary: Mapping[str, int]) -> list[Part]:
        """Split a text at the format's control tokens, and replace each control token by its id in the vocabulary."""
        known = [re.escape(name) for name in self.markers if name in vocabulary]
        pieces = re.split(f"({'|'.join(known)})", text) if known else [text]
        return [vocabulary[piece] if number % 2 else piece for number, piece in enumerate(pieces)]


@cache
def edit_formats() -> Mapping[str, EditFormat]:
    """Return all prompt formats by name. A model uses the first format whose pattern matches the model's name."""
    return {
        name: EditFormat(name=name, **_fields(table))
        for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
    }


def _fields(table: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return {**values, "reads": Reading(**_fields(table["reads"]))} if "reads" in table else values


def find_format(setting: str, model: str, tokenizer: TextTokenizer) -> EditFormat | str:
    """Return the format that the setting `edit_format` selects for a model, or a clause that says why there is none.

    With "auto", the first format whose pattern `models` matches the model's hub id or file name is selected.
    """
    assert setting in EDIT_FORMATS
    known = edit_formats()
    if setting == "none":
        return "edits are switched off by the setting edit_format"
    named = (each for each in known.values() if each.models and re.search(each.models, model, re.IGNORECASE))
    chosen = known[setting] if setting != "auto" else next(named, None)
    if chosen is None:
        return f"{model} was not trained for edits: serve a Sweep or Zeta model, or set edit_format to chat"
    missing = chosen.missing(tokenizer.vocab)
    if missing:
        return f"the vocabulary of {model} lacks {' and '.join(missing)}, which the format {chosen.name} needs"
    return chosen


def encode_parts(tokenizer: TextTokenizer, parts: Sequence[Part]) -> tuple[list[int], str]:
    """Return the token ids of a prompt, and the prompt's text without control tokens."""
    merged: list[Part] = []  # adjacent texts are encoded together, because a token may cross their boundary
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
    """A client's prompt in one of the next-edit formats."""

    form: EditFormat
    prompt: str
    prediction: str  # the answer that changes nothing, excluding the part that the prompt already contains
    stops: tuple[str, ...]  # texts that end an answer, like control tokens

    def ids(self, tokenizer: TextTokenizer) -> list[int] | None:
        """Return the prompt's ids, or None if the vocabulary lacks one of the format's control tokens."""
        if self.form.missing(tokenizer.vocab):
            return None
        return encode_parts(tokenizer, self.form.split_markers(self.prompt, tokenizer.vocab))[0]


def read_edit_prompt(prompt: str) -> ReadyMadeEdit | None:
    """Parse a client's next-edit prompt, or return None for any other text."""
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
    """Return the lines that a chat message marks for editing, which the answer is likely to repeat, or "" if none."""
    form = edit_formats()["zeta-1"]
    assert form.reads is not None
    found = _find_current(form.reads, message)
    return found[0].replace(form.mark, "") if found is not None else ""


def _find_current(reading: Reading, prompt: str) -> tuple[str, str] | None:
    """Return the text between the last two markers and the text after them, or None if a marker is missing."""
    end = prompt.rfind(reading.closes)
    start = prompt.rfind(reading.opens, 0, max(0, end))
    return (prompt[start + len(reading.opens) : end], prompt[end + len(reading.closes) :]) if start >= 0 else None


@dataclass(frozen=True, slots=True)
class LineHunk:
    """A hunk, in which `lines` replace the lines of the window from index `start` up to but not including `end`."""

    start: int
    end: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The old lines that an answer rewrites."""

    lines: tuple[str, ...] = ()
    given: int = 0  # number of lines of the answer that the prompt contains
    marks: tuple[str, ...] = ()  # cursor markers to remove from an answer
    after: tuple[str, ...] = ()  # lines after the window, which may be repeated at the end of an answer
    # Old lines that the answer does not reach are left, and lines are added at the end only if the document ends there.
    keeps_end: bool = False

    @property
    def ends(self) -> bool:
        """Whether only blank lines follow the window in the document."""
        return not any(map(str.strip, self.after))


class AnswerReader:
    """Compares a growing answer with the old lines of a window."""

    def __init__(self, window: Window) -> None:
        self.window, self.old = window, list(window.lines)
        self._new = list[str]()
        self._rest = ""  # the last line, which may be incomplete
        self._at_old = self._at_new = 0  # lines of the window and of the answer that earlier hunks cover
        self._differs = False
        for line in self.old[: window.given]:
            self._add(line)

    def feed(self, text: str) -> list[LineHunk]:
        """Read the next part of the answer and return the hunks that are now complete."""
        *whole, self._rest = (self._rest + text).split("\n")
        return [hunk for line in whole if not self.is_over and (hunk := self._add(line)) is not None]

    @property
    def is_over(self) -> bool:
        """Whether the hunks are final, whatever the rest of the answer contains."""
        return self._at_old == len(self.old) and self.window.keeps_end and not self.window.ends

    def finish(self) -> list[LineHunk]:
        """Process the end of the answer and return the remaining hunks; a blank answer has no hunks.

        Blank lines at the end of the window are left unchanged, because models add and drop blank lines at random.
        Lines at the end of the answer that repeat the lines after the window are ignored.
        """
        found = self.feed("\n") if self._rest else []
        if not any(map(str.strip, self._new)):
            return []
        old, new = _without_blank_end(self.old[self._at_old :]), _without_blank_end(self._new[self._at_new :])
        if not common_end(old, new):
            new = new[: len(new) - _beyond(new, self.window.after)]
        same = common_end(old, new)
        rest, written = old[: len(old) - same], new[: len(new) - same]
        end, adds = len(rest), bool(old) or self.window.ends
        if self.window.keeps_end and not (adds and same and any(map(has_letters, rest))):
            # A model that was not trained for edits may end too early, so the lines that it did not reach stay.
            end, written = (_replaced(rest, written), written) if adds else (0, [])
        hunk = self._hunk(self._at_old + end, self._at_new + len(written))
        return [*found, hunk] if hunk is not None else found

    def _add(self, line: str) -> LineHunk | None:
        for mark in self.window.marks:
            line = line.replace(mark, "")
        self._new.append(line)
        if not self._differs and self.old[self._at_old : self._at_old + 1] == [line]:
            self._at_old, self._at_new = self._at_old + 1, self._at_new + 1
            return None
        self._differs = True
        return self._agree_again()

    def _agree_again(self) -> LineHunk | None:
        """Return the hunk that is complete because the last lines of the answer match old lines, or None."""
        for size in (SURE_WITH_LETTERS, SURE_LINES):
            tail = self._new[max(self._at_new, len(self._new) - size) :]
            if len(tail) < size or (size < SURE_LINES and not all(map(has_letters, tail))):
                continue
            places = range(self._at_old, len(self.old) - size + 1)
            place = next((place for place in places if self.old[place : place + size] == tail), None)
            if place is not None:
                same = common_end(self.old[self._at_old : place], self._new[self._at_new : -size])
                hunk = self._hunk(place - same, len(self._new) - size - same)
                self._at_old, self._at_new, self._differs = place + size, len(self._new), False
                return hunk
        return None

    def _hunk(self, end: int, new_end: int) -> LineHunk | None:
        lines = tuple(self._new[self._at_new : new_end])
        return LineHunk(self._at_old, end, lines) if lines or end > self._at_old else None


def common_end(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many lines at the ends of two lists of lines are equal."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _without_blank_end(lines: list[str]) -> list[str]:
    return lines[: max((n for n, line in enumerate(lines, 1) if line.strip()), default=0)]


def _beyond(new: Sequence[str], after: Sequence[str]) -> int:
    """Return the number of lines at the end of an answer that repeat the first lines after the window."""
    # Repeated lines without letters count only if there are no others, because new code may need its own brackets.
    for count in range(min(len(new), len(after)), 0, -1):
        tail = list(new[-count:])
        if tail == list(after[:count]) and (count == len(new) or any(map(has_letters, tail))):
            return count
    return 0


def _replaced(old: Sequence[str], new: Sequence[str]) -> int:
    """Return how many old lines the new lines replace."""
    # A new line replaces an old line if both or neither contain letters, or if it contains the text of the old line.
    count = 0
    for line in new:
        bracket = old[count].strip() if count < len(old) else ""
        count += count < len(old) and (has_letters(bracket) == has_letters(line) or (bracket != "" and bracket in line))
    return count


def has_letters(line: str) -> bool:
    """Return whether a line contains a letter."""
    return any(map(str.isalpha, line))
