"""Completions as text: streamed or finished, followed while the user types them, and cached while they fit.

Uses strings and edits only, without the daemon or the editor.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from codespec_lsp.buffer import Edit
from codespec_lsp.prompt import TextAround

# Pairs that an editor inserts when one character is typed.
PAIRS = ("()", "[]", "{}", '""', "''", "``", "<>")
# Inside a word, or after a joining character, more text would change the text already shown.
_UNSTABLE_END = re.compile(r"(?:[\w$\r]|\S?[\u200d\ufe0f])+\Z")
_numbers = itertools.count(1)


@dataclass(eq=False, slots=True)
class CachedCompletion:
    """A completion of a prompt.

    `growing`: it is being streamed. `done`: it is complete. The listeners are called at each change.
    """

    prompt: TextAround
    text: str = ""
    done: bool = False
    growing: bool = False
    resumed: int = 0
    number: int = field(default_factory=lambda: next(_numbers))
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def grow(self, piece: str) -> None:
        """Append a final piece."""
        self.text += piece
        self._notify()

    def finish(self) -> None:
        """Mark the completion as complete."""
        self.done, self.growing = True, False
        self._notify()

    def stop(self) -> None:
        """Mark the stream as stopped before the completion is done."""
        self.growing = False
        self._notify()

    def _notify(self) -> None:
        for listener in list(self.listeners):
            listener()


class CompletionCache:
    """An LRU cache of completions."""

    def __init__(self, most: int = 24) -> None:
        self._most = most
        self._completions: OrderedDict[int, CachedCompletion] = OrderedDict()

    def add(self, completion: CachedCompletion) -> None:
        """Add a completion."""
        self._completions[completion.number] = completion
        self._completions.move_to_end(completion.number)
        while len(self._completions) > self._most:
            self._completions.popitem(last=False)

    def find(self, prompt: TextAround) -> list[tuple[CachedCompletion, str]]:
        """Return the completions that fit a prompt, each with its remaining text, the latest first.

        A completion that was typed to its end does not fit. One that finished empty does, and means that there is
        nothing to complete.
        """
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
        """Drop the completions of a document."""
        for number in [number for number, each in self._completions.items() if each.prompt.uri == uri]:
            del self._completions[number]

    @staticmethod
    def _may_be_empty(completion: CachedCompletion) -> bool:
        return completion.growing or (completion.done and not completion.text)


@dataclass(slots=True)
class TypedPrefix:
    """The part of a completion that the document already contains because the user typed it.

    `start` is the completion's offset in the document, in code points; `typed` is the number of its code points that
    are there. `lost` is set once an edit has diverged.
    """

    start: int
    typed: int = 0
    lost: bool = False

    @property
    def tip(self) -> int:
        """The offset of the completion's remaining text."""
        return self.start + self.typed

    def follow(self, edit: Edit, text: str) -> str:
        """Apply an edit and return the piece of `text` that it inserted at the tip.

        Deleting typed text returns "" without setting `lost`.
        """
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
        """Follow a deletion that ends at the tip and lies within the typed part; any other sets `lost`."""
        end = edit.start + len(edit.removed)
        if edit.text or end != self.tip or edit.start < self.start:
            self.lost = True
        else:
            self.typed -= len(edit.removed)


def is_accepted(piece: str) -> bool:
    """Return whether a piece inserted by one edit was accepted rather than typed.

    It was if it is longer than a key press and not added by the editor (a closing bracket or quote, indentation).
    """
    return len(piece) > 1 and bool(piece.strip()) and piece not in PAIRS


def stable_prefix(text: str) -> str:
    """Return the part of a growing text that can be shown: up to the end of a word, without a last blank line."""
    shown = _UNSTABLE_END.sub("", text)
    if not shown.strip():
        return ""
    lines = shown.rstrip(" \t")
    return lines.rstrip() if lines.endswith("\n") else shown


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A completion as suggested at a prompt: `rest` is its remaining text, `shown` the part that can be shown now."""

    completion: CachedCompletion
    shown: str
    rest: str

    @classmethod
    def of(cls, completion: CachedCompletion, prompt: TextAround) -> Suggestion:
        """Return the suggestion of a completion at a prompt, with empty texts if it does not fit."""
        rest = completion.prompt.rest(prompt, completion.text) or ""
        return cls(completion, rest if completion.done else stable_prefix(rest), rest)

    @property
    def name(self) -> str:
        """The completion's identifier between client and server."""
        return str(self.completion.number)

    @property
    def typed(self) -> int:
        """The number of the completion's characters that are already in the document."""
        return len(self.completion.text) - len(self.rest)

    @property
    def text(self) -> str:
        """The completion from its start to the end of the shown part."""
        return self.completion.text[: self.typed + len(self.shown)]
