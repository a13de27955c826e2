"""A person types at one place and looks at what the editor shows: keys in human time, questions as VS Code asks them.

After each change it waits 50 ms and asks; a question that is still open when the next key comes is taken back first;
when the server says that there is more, it asks again. Knows an editor, a tap and the clock; judges nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codespec.bench.typing_editor import Editor
from codespec.bench.typing_hand import Key
from codespec.bench.typing_places import TypingPlace
from codespec.bench.typing_tap import Stream, Tap

DEBOUNCE = 0.05  # seconds from a change to VS Code's question
REACTION = 0.5  # seconds that a suggestion is looked at before it is taken
LEAST_TAKEN = 3  # characters for which somebody reaches for Tab
BUDGET_MS, UNHURRIED_MS = 600, 60_000  # the server's own setting, and no haste at all


@dataclass(slots=True)
class Question:
    """One question: behind how many characters, why (a key, a Tab, more), the clock's times of the change, the question
    and its answer (None: superseded), and the text that was then shown."""

    at: int
    cause: str
    changed: float
    asked: float
    answered: float | None = None
    text: str = ""
    item: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Typed:
    """What came of typing at a place: when each character count was reached, and how, all questions, what was asked of
    the daemon, the tokens that it wrote, the server's counters. `taken` are characters that Tab put in."""

    seconds: float = 0.0
    keys: int = 0
    taken: int = 0
    waits: dict[int, float] = field(default_factory=dict)  # by characters typed: seconds until the next change
    questions: list[Question] = field(default_factory=list)
    streams: Sequence[Stream] = ()
    tokens: int = 0
    counters: dict[str, int] = field(default_factory=dict)


class Typist:
    """Types at one place, once. With `taking` a suggestion whose first line is right is taken with Tab."""

    def __init__(self, editor: Editor, place: TypingPlace, keys: Sequence[Key], taking: bool) -> None:
        self._editor, self._place, self._taking = editor, place, taking
        self._keys = list(keys)
        self._version, self._at = 1, 0
        self._changed = self._seen = 0.0
        self._ghost = ""
        self._shown: Question | None = None  # whose answer the ghost text is
        self._more, self._news = asyncio.Event(), asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self.typed = Typed()

    async def type(self) -> Typed:
        """Opens the place, types it whole, and leaves it open."""
        self._editor.on_more = self._hear
        self._editor.open(self._place, self._place.after(0))
        begun = self._changed = time.perf_counter()
        try:
            while self._keys:
                due = self._changed + self._keys[0].wait
                if await self._decide(due):
                    await self._change(self._suggestion(), "tab")
                else:
                    await self._change(self._keys[0].text, "key")
            await asyncio.sleep(max(0.0, self._changed + BUDGET_MS / 1000 + DEBOUNCE - time.perf_counter()))
        finally:
            await self._stop_asking()
        self.typed.seconds = time.perf_counter() - begun
        return self.typed

    async def _decide(self, due: float) -> bool:
        """Waits until the next key is due or the suggestion is taken; whether it is."""
        while True:
            until = due
            if self._taking and self._suggestion():
                until = min(due, max(self._seen + REACTION, time.perf_counter()))
                if self._seen + REACTION <= time.perf_counter():
                    return True
            left = until - time.perf_counter()
            if left <= 0:
                if until == due:
                    return False
                continue
            self._news.clear()
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _suggestion(self) -> str:
        """What Tab would put in: the whole ghost text or its first line, if it is what is to be typed."""
        whole, line = self._ghost, first_line(self._ghost)
        left = self._place.typed[self._at :]
        found = whole if left.startswith(whole) else line if left.startswith(line) else ""
        return found if len(found.strip()) >= LEAST_TAKEN else ""

    async def _change(self, text: str, cause: str) -> None:
        await self._stop_asking()
        self._version += 1
        before, now = self._changed, time.perf_counter()
        self.typed.waits[self._at] = now - before
        self._editor.insert(self._place, self._version, position(self._place, self._at), text)
        if cause == "tab":
            self.typed.taken += len(text)
            if text == self._ghost and self._shown is not None and self._shown.item is not None:
                self._editor.accept(self._shown.item)
        self.typed.keys += cause == "key"
        self._changed, self._at = now, self._at + len(text)
        self._ghost = self._ghost[len(text) :] if self._ghost.startswith(text) else ""
        self._skip_keys()
        self._asking = asyncio.get_running_loop().create_task(self._ask(cause))

    def _skip_keys(self) -> None:
        """Drops what is there already; of a key that is there in part the rest is left."""
        while self._keys and self._keys[0].end <= self._at:
            self._keys.pop(0)
        if self._keys and self._keys[0].start < self._at:
            key = self._keys[0]
            self._keys[0] = Key(self._at, key.text[self._at - key.start :], key.wait)

    async def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
            if not self._asking.cancelled() and (error := self._asking.exception()) is not None:
                raise error
            self._asking = None

    async def _ask(self, cause: str) -> None:
        """Asks once, and again whenever there is more, until the next change."""
        self._more.clear()
        await asyncio.sleep(self._changed + DEBOUNCE - time.perf_counter())
        while True:
            question = Question(self._at, cause, self._changed, time.perf_counter())
            self.typed.questions.append(question)
            number, reply = self._editor.ask(self._place, position(self._place, self._at))
            try:
                self._show(question, await reply)
            except asyncio.CancelledError:
                self._editor.cancel(number)
                raise
            await self._more.wait()
            self._more.clear()
            cause = "more"

    def _show(self, question: Question, reply: Mapping[str, Any]) -> None:
        """What the editor does with an answer."""
        if "error" in reply:
            return
        question.answered = time.perf_counter()
        items = reply["result"]["items"]
        if items:
            question.item = items[0]
            question.text = shown_text(items[0], position(self._place, self._at))
        if not (self._ghost and question.text.startswith(self._ghost)):
            self._seen = question.answered
        self._ghost, self._shown = question.text, question
        self._news.set()

    def _hear(self, uri: str, version: int) -> None:
        if (uri, version) == (self._place.uri, self._version):
            self._more.set()


async def type_place(editor: Editor, tap: Tap, place: TypingPlace, keys: Sequence[Key], *, taking: bool) -> Typed:
    """Types at a place and closes it; everything that was seen."""
    tokens, first, counters = await tap.tokens(), len(tap.streams), await editor.counters()
    typed = await Typist(editor, place, keys, taking).type()
    editor.close(place)
    after = await editor.counters()
    typed.counters = {name: after[name] - counters[name] for name in ("fromMemory", "fromDaemon", "cutByTheClock")}
    typed.streams, typed.tokens = tap.streams[first:], await tap.tokens() - tokens
    return typed


async def ask_unhurried(editor: Editor, place: TypingPlace, at: int) -> str:
    """What is answered where all the time in the world is left, in the state of the file after so many characters."""
    editor.configure(budgetMs=UNHURRIED_MS)
    editor.open(place, place.after(at))
    try:
        where = position(place, at)
        reply = await editor.ask(place, where)[1]
        items = reply["result"]["items"] if "result" in reply else []
        return shown_text(items[0], where) if items else ""
    finally:
        editor.close(place)
        editor.configure(budgetMs=BUDGET_MS)


def position(place: TypingPlace, at: int) -> dict[str, int]:
    """Where the cursor is after so many characters."""
    end = place.begin + at
    return {"line": place.text.count("\n", 0, end), "character": end - (place.text.rfind("\n", 0, end) + 1)}


def shown_text(item: Mapping[str, Any], cursor: Mapping[str, int]) -> str:
    """An item's text without what stands before the cursor."""
    text: str = item["insertText"]
    return text[cursor["character"] - item["range"]["start"]["character"] :]


def first_line(text: str) -> str:
    """Up to the end of the first line that holds anything."""
    start = len(text) - len(text.lstrip("\n"))
    end = text.find("\n", start)
    return text if end < 0 else text[:end]
