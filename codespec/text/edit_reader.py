"""Recognize the prompts that next-edit clients write themselves, and find the text that the answer will repeat.

Clients spell a format's control tokens as text. Only the tokens of the recognized format become ids; what else the
prompt spells stays text, as in `text.edit_prompt`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from codespec.text.edit_formats import EditFormat, Reading, edit_formats
from codespec.text.edit_prompt import encode_parts, split_markers
from codespec.text.tokenizer import TextTokenizer


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
        parts = split_markers(tokenizer, self.form, self.prompt)
        return encode_parts(tokenizer, parts)[0]


def read_edit_prompt(prompt: str) -> ReadyMadeEdit | None:
    """Return a next-edit prompt by its format, or None for any other text."""
    for form, reading in _readings():
        current = _find_current(reading, prompt)
        if current is not None:
            stops = form.stops if reading.stops is None else reading.stops
            return ReadyMadeEdit(form, prompt, _predict(form, reading, *current), stops)
    return None


def predict_region(message: str) -> str:
    """Return the lines that an answer to a chat message repeats, or "" if it marks none as to be edited."""
    form = edit_formats()["zeta-1"]
    reading = form.reads
    assert reading is not None
    end = message.rfind(reading.closes)
    start = message.rfind(reading.opens, 0, max(0, end))
    return message[start + len(reading.opens) : end].replace(form.mark, "") if start >= 0 else ""


def _readings() -> Iterator[tuple[EditFormat, Reading]]:
    for form in edit_formats().values():
        if form.reads is not None:
            yield form, form.reads


def _find_current(reading: Reading, prompt: str) -> tuple[str, str] | None:
    """Return the block with the current text, and the beginning of the answer after it."""
    if not prompt.startswith(reading.begins) or not prompt.rstrip().endswith(reading.ends):
        return None
    end = prompt.rfind(reading.closes)
    start = prompt.rfind(reading.opens, 0, max(0, end))
    if start < 0:
        return None
    current, given = prompt[start + len(reading.opens) : end], prompt[end + len(reading.closes) :]
    if not reading.headed:
        return current, ""
    return current.partition("\n")[2], given.partition("\n")[2]


def _predict(form: EditFormat, reading: Reading, current: str, given: str) -> str:
    text = current.replace(form.mark, "")
    return reading.answer.replace("{current}", text).removeprefix(given) if text.startswith(given) else ""
