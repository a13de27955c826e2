"""The prompt formats of next-edit models, read from edit_formats.toml, clients' prompts in them, and their answers.

A format is data: the lines that a window has, the order and the spelling of the prompt's parts, and the ends of an
answer. `text.edit_prompt` assembles a prompt from it. Clients spell a format's control tokens as text. Only the tokens
of the recognized format become ids; what else a prompt spells stays text.

An answer rewrites a window. `AnswerReader` yields its hunks, each as soon as the answer agrees with the old lines
again; together they turn the window into the answer. Whole lines are compared. After a difference, the texts agree
again at two equal lines with letters or at three equal lines, because brackets and blank lines occur everywhere.
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
SURE_LINES, SURE_WITH_LETTERS = 3, 2  # equal lines after which a difference is over


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


@dataclass(frozen=True, slots=True)
class LineHunk:
    """Lines that replace the window's lines from `start` up to `end`."""

    start: int
    end: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The old lines, of which the prompt already gives the first `given` as the beginning of the answer.

    `marks` are texts that an answer may repeat at the cursor, and that are no part of the code. `after` are the lines
    after the old ones, which an answer may go on with. With `keeps_end`, an answer that ends before the old lines do
    leaves the rest of them, and adds lines after them only at the document's end.
    """

    lines: tuple[str, ...] = ()
    given: int = 0
    marks: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    keeps_end: bool = False

    @property
    def ends(self) -> bool:
        """Whether the document ends with the window."""
        return not any(map(str.strip, self.after))


class AnswerReader:
    """Compares a growing answer with the old lines.

    It `is_over` at the end of the window if no lines may be added there; what follows is ignored.
    """

    def __init__(self, window: Window) -> None:
        self.window, self.old = window, list(window.lines)
        self._new = list[str]()
        self._rest = ""  # the last line, which may go on
        self._at_old = self._at_new = 0  # the texts before these lines are compared
        self._differs = False
        for line in self.old[: window.given]:
            self._add(line)

    def feed(self, text: str) -> list[LineHunk]:
        """Read a piece of the answer and return the hunks that it completes."""
        *whole, self._rest = (self._rest + text).split("\n")
        return [hunk for line in whole if not self.is_over and (hunk := self._add(line)) is not None]

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows can change the hunks."""
        return self._at_old == len(self.old) and self.window.keeps_end and not self.window.ends

    def finish(self) -> list[LineHunk]:
        """Read the end of a whole answer and return the hunks that it completes.

        Blank lines at the end stay those of the window, because models add and drop them at random. Lines that stand
        after the window are no part of it. An answer without any text changes nothing.
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
            # A model that was not trained for edits ends too early: the lines that it did not reach stay.
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
        """Return the hunk that the last lines of the answer end, if they are enough to find them in the old ones."""
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
        """Return the hunk up to these lines, or None if nothing differs."""
        lines = tuple(self._new[self._at_new : new_end])
        return LineHunk(self._at_old, end, lines) if lines or end > self._at_old else None


def common_end(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many lines at the end are equal."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _without_blank_end(lines: list[str]) -> list[str]:
    return lines[: max((n for n, line in enumerate(lines, 1) if line.strip()), default=0)]


def _beyond(new: Sequence[str], after: Sequence[str]) -> int:
    """Return how many lines at the end of an answer are the first ones after the window.

    Brackets alone are not enough after other new lines, since these may need them.
    """
    for count in range(min(len(new), len(after)), 0, -1):
        tail = list(new[-count:])
        if tail == list(after[:count]) and (count == len(new) or any(map(has_letters, tail))):
            return count
    return 0


def _replaced(old: Sequence[str], new: Sequence[str]) -> int:
    """Return how many of the last old lines the new ones replace: code replaces code, and a bracket a line with it."""
    count = 0
    for line in new:
        bracket = old[count].strip() if count < len(old) else ""
        count += count < len(old) and (has_letters(bracket) == has_letters(line) or (bracket != "" and bracket in line))
    return count


def has_letters(line: str) -> bool:
    """Return whether a line holds a letter."""
    return any(map(str.isalpha, line))
