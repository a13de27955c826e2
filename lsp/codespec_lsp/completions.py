"""Completions as text: growing or finished, typed along by the user, and cached for as long as they fit.

Knows strings and edits; knows no daemon and no editor.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from codespec_lsp.buffer import Edit
from codespec_lsp.prompt import Prompt

# What an editor inserts by itself while one character is typed.
PAIRS = ("()", "[]", "{}", '""', "''", "``", "<>")
# Within a word, and after a sign that joins characters, more text would change what is there.
_UNSTABLE_END = re.compile(r"(?:[\w$\r]|\S?[\u200d\ufe0f])+\Z")
_numbers = itertools.count(1)


@dataclass(eq=False, slots=True)
class Completion:
    """A completion of a prompt. `growing`: it is being streamed; `done`: nothing more comes. Listeners are called at
    each change."""

    prompt: Prompt
    text: str = ""
    done: bool = False
    growing: bool = False
    resumed: int = 0
    finish_reason: str = ""
    number: int = field(default_factory=lambda: next(_numbers))
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def grow(self, piece: str) -> None:
        """Appends a piece that will not be taken back."""
        self.text += piece
        self._notify()

    def finish(self, reason: str) -> None:
        """Nothing more comes."""
        self.done, self.growing, self.finish_reason = True, False, reason
        self._notify()

    def stop(self) -> None:
        """The stream is over before the completion is done."""
        self.growing = False
        self._notify()

    def _notify(self) -> None:
        for listener in list(self.listeners):
            listener()


class CompletionCache:
    """The completions seen last; the least recently used one is dropped first."""

    def __init__(self, most: int = 24) -> None:
        self._most = most
        self._completions: OrderedDict[int, Completion] = OrderedDict()

    def add(self, completion: Completion) -> None:
        """Keeps a completion."""
        self._completions[completion.number] = completion
        self._completions.move_to_end(completion.number)
        while len(self._completions) > self._most:
            self._completions.popitem(last=False)

    def find(self, prompt: Prompt) -> list[tuple[Completion, str]]:
        """The completions that fit a prompt, each with its text from there on, the latest first. One that was typed to
        its end does not fit; one that was empty from the start says that there is nothing to complete."""
        found = []
        for completion in reversed(self._completions.values()):
            rest = completion.prompt.rest(prompt, completion.text)
            if rest is None or (not rest and not self._may_be_empty(completion)):
                continue
            found.append((completion, rest))
        for completion, _ in reversed(found):
            self._completions.move_to_end(completion.number)
        return found

    def forget(self, uri: str) -> None:
        """Drops the completions of a document."""
        for number in [number for number, each in self._completions.items() if each.prompt.uri == uri]:
            del self._completions[number]

    @staticmethod
    def _may_be_empty(completion: Completion) -> bool:
        return completion.growing or (completion.done and not completion.text)


@dataclass(slots=True)
class TypedPrefix:
    """How much of a completion the document already holds because the user types along. `start` is where the completion
    begins, in code points of the document; `typed` of it stand there. Once `lost` is true, an edit has diverged."""

    start: int
    typed: int = 0
    lost: bool = False

    @property
    def tip(self) -> int:
        """Where the rest of the completion would go."""
        return self.start + self.typed

    def follow(self, edit: Edit, text: str) -> str:
        """Takes an edit; returns which piece of `text` it put at the tip. Deleting what was typed along returns nothing
        and loses nothing."""
        if self.lost:
            return ""
        edit = edit.least()
        if not edit.removed and not edit.text:
            return ""
        if edit.removed:
            self._take_back(edit)
            return ""
        if edit.start != self.tip or not text.startswith(edit.text, self.typed):
            self.lost = True
            return ""
        self.typed += len(edit.text)
        return edit.text

    def _take_back(self, edit: Edit) -> None:
        """A deletion is followed where it ends at the tip and lies within what was typed along."""
        end = edit.start + len(edit.removed)
        if edit.text or end != self.tip or edit.start < self.start:
            self.lost = True
        else:
            self.typed -= len(edit.removed)


def is_accepted(piece: str) -> bool:
    """Whether a piece that came in one edit was accepted, not typed: more than a key, and not what an editor adds to a
    key (the second of a pair, a line's indentation)."""
    return len(piece) > 1 and bool(piece.strip()) and piece not in PAIRS


def stable_prefix(text: str) -> str:
    """How much of a growing text can be shown: up to the end of a word, without a line that is only white space yet."""
    shown = _UNSTABLE_END.sub("", text)
    if not shown.strip():
        return ""
    lines = shown.rstrip(" \t")
    return lines.rstrip() if lines.endswith("\n") else shown


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A completion as it is suggested at a prompt: `shown` is the part of its `rest` that can be shown by now."""

    completion: Completion
    shown: str
    rest: str

    @classmethod
    def of(cls, completion: Completion, prompt: Prompt) -> Suggestion:
        """What a completion suggests at a prompt; nothing where it does not fit."""
        rest = completion.prompt.rest(prompt, completion.text) or ""
        return cls(completion, rest if completion.done else stable_prefix(rest), rest)

    @property
    def name(self) -> str:
        """What client and server call it."""
        return str(self.completion.number)

    @property
    def typed(self) -> int:
        """How many characters of the completion stand in the document already."""
        return len(self.completion.text) - len(self.rest)

    @property
    def text(self) -> str:
        """The completion from its start as far as it is shown."""
        return self.completion.text[: self.typed + len(self.shown)]
