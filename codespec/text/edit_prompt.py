"""Assemble the prompt of a next edit from a format, as ids.

The control tokens of a format are the only ones: source text, paths and messages are always encoded as text. What does
not fit is left out, the oldest changes first. Independent of models and requests.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from codespec.text.edit_formats import EditFormat
from codespec.text.edit_hunks import Window
from codespec.text.tokenizer import TextTokenizer

MAX_FILE_LINES = 800  # in {file}
MAX_AFTER = 16  # lines after the window that an answer may go on with
SPARE = 64  # tokens of an answer in addition to twice the window's
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_FENCE = re.compile(r"`{3,}")
Part = str | int  # text, or the id of a control token
Values = Mapping[str, str | list[Part]]


@dataclass(frozen=True, slots=True)
class Change:
    """A past change: whole lines that replaced others, which began at `row` of the file.

    `predicted` is true for an accepted edit.
    """

    path: str
    row: int
    old: str
    new: str
    predicted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EditContext:
    """What is known for an edit, wherever it is.

    `lines` are the rows of the document from `first_row` on, without line breaks. `original` are the same lines before
    the last change, or () if unknown. `cursor` is a row of the document and a character of that row. `changes` are
    oldest first. `snippets` are (path, text), `problems` are (row, message).
    """

    path: str
    lines: Sequence[str]
    first_row: int = 0
    language: str = ""
    cursor: tuple[int, int] | None = None
    changes: Sequence[Change] = ()
    original: Sequence[str] = ()
    snippets: Sequence[tuple[str, str]] = ()
    problems: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True, slots=True)
class EditPrompt:
    """A prompt, and the window that its answer rewrites.

    The window's lines begin at `start_row` of the document. `prediction` is the answer that changes nothing. `stops`
    are the texts that end an answer, which has at most `max_tokens` tokens.
    """

    ids: list[int]
    text: str
    start_row: int
    window: Window
    prediction: str
    stops: tuple[str, ...]
    max_tokens: int


def build_edit_prompt(
    tokenizer: TextTokenizer,
    form: EditFormat,
    context: EditContext,
    place: int,
    *,
    most: int,
    budget: int,
    max_tokens: int | None = None,
) -> EditPrompt | str:
    """Return the prompt for an edit around row `place` of the document, or a sentence why there is none.

    Prompt and answer have at most `most` tokens. The window is always whole, and the latest change is in the prompt if
    it fits. Older changes, the lines around the window, problems and other files are added while the prompt has at most
    `budget` tokens. By default, `max_tokens` is twice the window's tokens and SPARE.
    """
    assembly = _Assembly(tokenizer, form, context, place - context.first_row)
    mark = next((mark for mark in _written_marks(form, tokenizer) if any(mark in line for line in assembly.window)), "")
    if mark:
        return f"The lines hold {mark}, which has a meaning in the model's answer."
    prediction = _joined(assembly.window[assembly.given :])
    if max_tokens is None:
        max_tokens = 2 * len(tokenizer.encode_inside(prediction)) + SPARE
    room = most - min(max_tokens, most // 2)
    size = len(assembly.encoded()[0])
    if size > room:
        return f"The lines and their answer need {size + most - room} tokens, and the context has {most}."
    assembly.fill(room, min(room, budget))
    ids, text = assembly.encoded()
    return EditPrompt(
        ids=ids,
        text=text,
        start_row=context.first_row + assembly.start,
        window=Window(
            lines=tuple(assembly.window),
            given=assembly.given,
            marks=(form.mark,) if form.mark else (),
            after=tuple(context.lines[assembly.end : assembly.end + MAX_AFTER]),
            keeps_end=form.keeps_end,
        ),
        prediction=prediction,
        stops=tuple(stop.replace("{fence}", assembly.fence) for stop in form.stops),
        max_tokens=most - room,
    )


def _written_marks(form: EditFormat, tokenizer: TextTokenizer) -> Iterator[str]:
    """Yield the marks that an answer spells as text, so that the same text in a window would be mistaken for them."""
    yield from (name for name in form.markers if name not in tokenizer.vocab)
    yield from (mark for mark in (form.mark, form.nothing) if mark)
    yield from (stop.strip() for stop in form.stops if "{" not in stop)


class _Assembly:
    """The parts of one prompt. `counts` says how much of each optional part it contains."""

    def __init__(self, tokenizer: TextTokenizer, form: EditFormat, context: EditContext, focus: int) -> None:
        lines = context.lines
        self.tokenizer, self.form, self.context = tokenizer, form, context
        ends_open = not lines[-1] and focus < len(lines) - 1  # the empty row after the last line break is no line
        self.start, self.end = max(0, focus - form.above), min(len(lines) - ends_open, focus + form.below + 1)
        self.window = lines[self.start : self.end]
        self.given = min(form.prefill, focus - self.start)
        self.original, self.past = _before_last_change(context, form.last_apart)
        longest = max((len(run[0]) for line in lines for run in _FENCE.finditer(line)), default=2)
        self.fence = "`" * (longest + 1)
        self.counts = dict.fromkeys(("changes", "around", "problems", "file", "snippets"), 0)

    def fill(self, room: int, budget: int) -> None:
        """Add as much as fits, what helps most first."""
        changes = min(self.form.changes, len(self.past))
        self._grow("changes", min(1, changes), room)
        self._grow("around", self.form.around, budget)
        self._grow("problems", len(self.context.problems), budget)
        self._grow("changes", changes, budget)
        self._grow("file", min(len(self.original), MAX_FILE_LINES), budget)
        self._grow("snippets", len(self.context.snippets), budget)

    def _grow(self, name: str, most: int, room: int) -> None:
        """Raise a count to the largest value up to `most` with which the prompt fits, by bisection."""
        least = self.counts[name]
        while least < most:
            self.counts[name] = middle = (least + most + 1) // 2
            if len(self.encoded()[0]) <= room:
                least = middle
            else:
                most = middle - 1
        self.counts[name] = least

    def encoded(self) -> tuple[list[int], str]:
        """Return the ids of the prompt, and its text without control tokens."""
        return encode_parts(self.tokenizer, self._parts())

    def _parts(self) -> list[Part]:
        form, context, counts = self.form, self.context, self.counts
        lines, start, end = context.lines, self.start, self.end
        first = max(0, start - counts["file"] // 2)
        after = _joined(lines[end : end + counts["around"]])
        values: Values = {
            **self._place(context.path, context.first_row + start, end - start),
            "language": context.language,
            "file": _joined(self.original[first : first + counts["file"]]),
            "before": _joined(lines[max(0, start - counts["around"]) : start]),
            "after": after,
            "after_or_blank": after or "\n",
            "original": _joined(self.original[slice(*_rows_before(self.original, lines, start, end))]),
            "window": _joined(self.window),
            "current": _joined(self._marked()),
            "history": self._history(),
            "snippets": self._snippets(),
            "diagnostics": self._diagnostics(),
        }
        return [*self._fill_in(form.prompt, values), _joined(self.window[: self.given])]

    def _marked(self) -> Sequence[str]:
        """Return the window with the format's mark at the cursor."""
        if self.context.cursor is None or not self.form.mark:
            return self.window
        row, column = self.context.cursor[0] - self.context.first_row - self.start, self.context.cursor[1]
        if not 0 <= row < len(self.window):
            return self.window
        line = self.window[row]
        return [*self.window[:row], line[:column] + self.form.mark + line[column:], *self.window[row + 1 :]]

    def _history(self) -> list[Part]:
        kept = self.past[len(self.past) - self.counts["changes"] :]
        return self._list("history", "changes", "change", [self._change(change) for change in kept])

    def _change(self, change: Change) -> Values:
        return {
            **self._place(change.path, change.row, change.new.count("\n")),
            "old": _closed(change.old),
            "new": _closed(change.new),
            "diff": _diff(change),
            "predicted": self.form.predicted if change.predicted else "",
        }

    def _snippets(self) -> list[Part]:
        kept = self.context.snippets[: self.counts["snippets"]]
        values = [{"path": path, "text": _closed(text), "fence": self.fence} for path, text in kept]
        return self._list("snippets", "files", "snippet", values)

    def _diagnostics(self) -> list[Part]:
        kept = self.context.problems[: self.counts["problems"]]
        values = [{"row": str(row + 1), "message": " ".join(message.split())} for row, message in kept]
        return self._list("diagnostics", "problems", "problem", values)

    def _list(self, frame: str, inner: str, item: str, values: Sequence[Values]) -> list[Part]:
        """Return a part that repeats the format's template `item`, in its template `frame`; nothing without values."""
        if not values:
            return []
        items = [part for each in values for part in self._fill_in(getattr(self.form, item), each)]
        return self._fill_in(getattr(self.form, frame), {inner: items, "fence": self.fence})

    def _place(self, path: str, row: int, size: int) -> dict[str, str | list[Part]]:
        return {"path": path, "start": str(row + 1), "end": str(row + size), "fence": self.fence}

    def _fill_in(self, template: str, values: Values) -> list[Part]:
        """Return a template with its placeholders replaced and its control tokens as ids. Values are not searched."""
        parts: list[Part] = []
        for number, piece in enumerate(_PLACEHOLDER.split(template)):
            if number % 2:
                value = values.get(piece, "")
                parts += [value] if isinstance(value, str) else value
            else:
                parts += split_markers(self.tokenizer, self.form, piece)
        return parts


def split_markers(tokenizer: TextTokenizer, form: EditFormat, text: str) -> list[Part]:
    """Return a text with the control tokens of a format as ids, if the vocabulary has them."""
    known = [name for name in form.markers if name in tokenizer.vocab]
    if not known:
        return [text]
    pieces = re.split(f"({'|'.join(map(re.escape, known))})", text)
    return [tokenizer.vocab[piece] if number % 2 else piece for number, piece in enumerate(pieces)]


def encode_parts(tokenizer: TextTokenizer, parts: Sequence[Part]) -> tuple[list[int], str]:
    """Return the ids of a prompt in parts, and its text without control tokens."""
    ids, texts = list(tokenizer.bos_ids), list[str]()
    for number, part in enumerate(_merged(parts)):
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += tokenizer.encode_inside(part, begins=not number)
            texts.append(part)
    return ids, "".join(texts)


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Return the parts without empty texts, and adjacent texts as one, because tokens may cross their border."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    return merged


def _before_last_change(context: EditContext, apart: bool) -> tuple[Sequence[str], Sequence[Change]]:
    """Return the lines before the last change, and the changes for the history.

    Without `original`, the last change is undone if its lines are where it made them. With `apart`, a format shows that
    change by the two versions of the window, so the history does not repeat it.
    """
    lines, past = context.lines, context.changes
    last = past[-1] if past and past[-1].path == context.path else None
    if context.original:
        return context.original, past[:-1] if last and apart else past
    if last is None:
        return lines, past
    row, old, new = last.row - context.first_row, last.old.split("\n"), last.new.split("\n")
    old, new = (rows[:-1] if rows[-1] == "" else rows for rows in (old, new))
    if row < 0 or list(lines[row : row + len(new)]) != new:
        return lines, past
    return [*lines[:row], *old, *lines[row + len(new) :]], past[:-1] if apart else past


def _rows_before(original: Sequence[str], lines: Sequence[str], start: int, end: int) -> tuple[int, int]:
    """Return the rows of `original` that became the rows from `start` to `end` of `lines` by one change."""
    most = min(len(original), len(lines))
    above = next((n for n in range(most) if original[n] != lines[n]), most)
    below = next((n for n in range(most - above) if original[-1 - n] != lines[-1 - n]), most - above)
    moved = len(original) - len(lines)
    first = start if start <= above else start + moved if start >= len(lines) - below else above
    last = end if end <= above else end + moved if end >= len(lines) - below else len(original) - below
    return first, last


def _diff(change: Change) -> str:
    """Return a change as a hunk of a unified diff, without the lines with the file's names."""
    old, new = change.old.splitlines(), change.new.splitlines()
    head = f"@@ -{change.row + 1},{len(old)} +{change.row + 1},{len(new)} @@\n"
    body = (line for line in difflib.ndiff(old, new) if not line.startswith("?"))
    return head + "".join(f"{line[0]}{line[2:]}\n" for line in body)


def _joined(lines: Sequence[str]) -> str:
    return "".join([f"{line}\n" for line in lines])


def _closed(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"
