"""Build the token ids of a next-edit prompt in a model's format.

Only the format contributes control tokens; source text, paths and messages are encoded as plain text. Optional parts
that exceed the token budget are left out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from codespec.text.edit_formats import EditFormat, Part, Window, encode_parts
from codespec.text.tokenizer import TextTokenizer

MAX_FILE_LINES = 800  # lines of the placeholder {file}
MAX_AFTER = 16  # lines after the window that are compared with the end of an answer
SPARE = 64  # by default, an answer may have twice the tokens of the window and this many more
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_FENCE = re.compile(r"`{3,}")
Values = Mapping[str, str | list[Part]]


@dataclass(frozen=True, slots=True)
class Change:
    """A past change of a file, in which the lines `new` replaced the lines `old` at `row`."""

    path: str
    row: int
    old: str
    new: str
    predicted: bool = False  # whether the change was an accepted suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class EditContext:
    """A document and its recent changes, from which a prompt is built."""

    path: str
    lines: Sequence[str]  # rows of the document from `first_row` on, without line breaks
    first_row: int = 0
    language: str = ""
    cursor: tuple[int, int] | None = None  # row of the document and character offset in that row
    changes: Sequence[Change] = ()  # from oldest to newest
    snippets: Sequence[tuple[str, str]] = ()  # (path, text)
    problems: Sequence[tuple[int, str]] = ()  # (row, message)


@dataclass(frozen=True, slots=True)
class EditPrompt:
    """A prompt, and the window of lines that the model's answer rewrites."""

    ids: list[int]
    text: str
    start_row: int  # row of the document at which the window begins
    window: Window
    prediction: str  # the answer that changes nothing
    stops: tuple[str, ...]  # texts that end an answer
    max_tokens: int  # of an answer


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
    """Return the prompt for an edit around row `place` of the document, or a sentence that says why there is none.

    The prompt and the answer together have at most `most` tokens, of which the answer has at most `max_tokens`. The
    prompt contains the whole window and, if there is room, the latest change. Lines around the window, problems, older
    changes and other files are added while the prompt has at most `budget` tokens.
    """
    assembly = _Assembly(tokenizer, form, context, place - context.first_row)
    mark = next((mark for mark in _written_marks(form, tokenizer) if any(mark in line for line in assembly.window)), "")
    if mark:
        return f"The lines contain {mark}, which is a marker of the model's format."
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
    """Yield the markers that answers contain as plain text and that the window must therefore not contain."""
    yield from (name for name in form.markers if name not in tokenizer.vocab)
    yield from (mark for mark in (form.mark, form.nothing) if mark)
    yield from (stop.strip() for stop in form.stops if "{" not in stop)


class _Assembly:
    """The parts of one prompt; `counts` contains the size of each optional part."""

    def __init__(self, tokenizer: TextTokenizer, form: EditFormat, context: EditContext, focus: int) -> None:
        lines = context.lines
        self.tokenizer, self.form, self.context = tokenizer, form, context
        ends_open = not lines[-1] and focus < len(lines) - 1  # whether to leave out the empty row at the end
        self.start, self.end = max(0, focus - form.above), min(len(lines) - ends_open, focus + form.below + 1)
        self.window = lines[self.start : self.end]
        self.given = min(form.prefill, focus - self.start)
        self.past, self.original, self.window_before = context.changes, lines, self.window
        self._undo_last_change()
        longest = max((len(run[0]) for line in lines for run in _FENCE.finditer(line)), default=2)
        self.fence = "`" * (longest + 1)
        self.counts = dict.fromkeys(("changes", "around", "problems", "file", "snippets"), 0)

    def _undo_last_change(self) -> None:
        """Reconstruct the text before the last change, if the change is still in the document."""
        # With `last_apart`, the prompt shows that change as an old and a new window instead of in the history.
        lines, last = self.context.lines, self.past[-1] if self.past else None
        if last is None or last.path != self.context.path:
            return
        row, old, new = last.row - self.context.first_row, _rows(last.old), _rows(last.new)
        after = row + len(new)
        if row < 0 or list(lines[row:after]) != new:
            return
        self.original = [*lines[:row], *old, *lines[after:]]
        moved = len(old) - len(new)
        first = self.start if self.start <= row else self.start + moved if self.start >= after else row
        end = self.end if self.end <= row else self.end + moved if self.end >= after else row + len(old)
        self.window_before = self.original[first:end]
        self.past = self.past[:-1] if self.form.last_apart else self.past

    def fill(self, room: int, budget: int) -> None:
        """Add optional parts to the prompt, most useful first, as long as they fit."""
        changes = min(self.form.changes, len(self.past))
        self._grow("changes", min(1, changes), room)
        self._grow("around", self.form.around, budget)
        self._grow("problems", len(self.context.problems), budget)
        self._grow("changes", changes, budget)
        self._grow("file", min(len(self.original), MAX_FILE_LINES), budget)
        self._grow("snippets", len(self.context.snippets), budget)

    def _grow(self, name: str, most: int, room: int) -> None:
        """Set a count to the largest number up to `most` for which the prompt has at most `room` tokens."""
        least = self.counts[name]
        while least < most:
            self.counts[name] = middle = (least + most + 1) // 2
            if len(self.encoded()[0]) <= room:
                least = middle
            else:
                most = middle - 1
        self.counts[name] = least

    def encoded(self) -> tuple[list[int], str]:
        """Return the token ids of the prompt, and the prompt's text without control tokens."""
        form, context, counts = self.form, self.context, self.counts
        lines, around, first = context.lines, counts["around"], max(0, self.start - counts["file"] // 2)
        changes = self.past[len(self.past) - counts["changes"] :]
        snippets, problems = context.snippets[: counts["snippets"]], context.problems[: counts["problems"]]
        after = _joined(lines[self.end : self.end + around])
        values: Values = {
            **_place(context.path, context.first_row + self.start, len(self.window)),
            "language": context.language,
            "file": _joined(self.original[first : first + counts["file"]]),
            "before": _joined(lines[max(0, self.start - around) : self.start]),
            "after": after,
            "after_or_blank": after or "\n",
            "original": _joined(self.window_before),
            "current": _joined(self._marked()),
            "history": self._list(form.history, "changes", form.change, [self._change(each) for each in changes]),
            "snippets": self._list(
                form.snippets, "files", form.snippet, [{"path": path, "text": _closed(text)} for path, text in snippets]
            ),
            "diagnostics": self._list(
                form.diagnostics,
                "problems",
                form.problem,
                [{"row": str(row + 1), "message": " ".join(message.split())} for row, message in problems],
            ),
        }
        return encode_parts(self.tokenizer, [*self._fill_in(form.prompt, values), _joined(self.window[: self.given])])

    def _marked(self) -> Sequence[str]:
        if self.context.cursor is None or not self.form.mark:
            return self.window
        row, column = self.context.cursor[0] - self.context.first_row - self.start, self.context.cursor[1]
        if not 0 <= row < len(self.window):
            return self.window
        line = self.window[row]
        return [*self.window[:row], line[:column] + self.form.mark + line[column:], *self.window[row + 1 :]]

    def _change(self, change: Change) -> Values:
        return {
            **_place(change.path, change.row, change.new.count("\n")),
            "old": _closed(change.old),
            "new": _closed(change.new),
            "diff": _diff(change),
            "predicted": self.form.predicted if change.predicted else "",
        }

    def _list(self, frame: str, inner: str, item: str, values: Sequence[Values]) -> list[Part]:
        """Fill in the template `item` for each of the values, and insert the results into the template `frame`."""
        items = [part for each in values for part in self._fill_in(item, each)]
        return self._fill_in(frame, {inner: items}) if values else []

    def _fill_in(self, template: str, values: Values) -> list[Part]:
        """Return a template with placeholders replaced and control tokens converted to ids, but not those in values."""
        parts: list[Part] = []
        for number, piece in enumerate(_PLACEHOLDER.split(template)):
            if number % 2:
                value = self.fence if piece == "fence" else values.get(piece, "")
                parts += [value] if isinstance(value, str) else value
            else:
                parts += self.form.split_markers(piece, self.tokenizer.vocab)
        return parts


def _place(path: str, row: int, size: int) -> dict[str, str | list[Part]]:
    return {"path": path, "start": str(row + 1), "end": str(row + size)}


def _rows(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _diff(change: Change) -> str:
    """Return a change as a hunk of a unified diff, without the two header lines with file names."""
    old, new = _rows(change.old), _rows(change.new)
    head = f"@@ -{change.row + 1},{len(old)} +{change.row + 1},{len(new)} @@\n"
    body = (line for line in difflib.ndiff(old, new) if not line.startswith("?"))
    return head + "".join(f"{line[0]}{line[2:]}\n" for line in body)


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _closed(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"
