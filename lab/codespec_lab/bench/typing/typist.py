"""A typist: types a text at one site at human speed and reads the editor's suggestions.

Key times come from a fixed model with a seed. The time between two keys has the mean and the relative spread of Dhakal,
Feit, Kristensson and Oulasvirta for 168,000 people ("Observations on Typing from 136 Million Keystrokes", CHI 2018,
table 3: 238.66 ms, 111.60 ms; 51.56 words a minute). They copied English sentences, and the spread is between people;
here it is between one typist's keys, and log-normal, since such times are skewed.

The rest of the model is our own: signs and first letters of words take longer than the rest of a word; there is a pause
before most lines and sometimes before a word, so that keys come in bursts (Shrestha and others, "Pausing While
Programming", ICSE 2022, attribute pauses of 2 to 15 s to thinking about the current code; here a pause is cut at 4 s,
long after every answer has arrived). There are no typing errors.

After each change the editor waits 50 ms and requests a completion, as VS Code does. At the next key it cancels a
request that is still open. It requests again when the server reports that there is more.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codespec_lab.bench.typing.editor import Editor, Proxy, Stream
from codespec_lab.bench.typing_sites import TypingSite

MEAN, SPREAD = 0.239, 0.112 / 0.239  # seconds; the standard deviation as a share of the mean
IN_WORD, WORD, SIGN = 0.8, 1.1, 1.4  # relative durations of the kinds of keys
LINE_PAUSE, WORD_PAUSE, PAUSE_SIGMA = 1.1, 1.6, 0.7  # medians in seconds
WORD_PAUSES = 0.06  # the share of words with a pause before them
MAX_PAUSE = 4.0
_KEYS = re.compile(r"\n[ \t]*|.", re.DOTALL)  # the editor indents
DEBOUNCE = 0.05  # seconds from a change to VS Code's request
REACTION = 0.5  # seconds that the typist reads a suggestion before taking it
MIN_TAKEN = 3  # least characters for which the typist presses Tab
BUDGET_MS, UNHURRIED_MS = 600, 60_000  # the server's default, and practically no limit


@dataclass(frozen=True, slots=True)
class Key:
    """A key: the text that it inserts after `start` characters, and the seconds since the previous key."""

    start: int
    text: str
    wait: float

    @property
    def end(self) -> int:
        """Return the number of characters up to and including this key."""
        return self.start + len(self.text)


@dataclass(slots=True)
class EditorRequest:
    """One request for a completion: the characters typed before it (`at`), its cause (key, tab, more), the times of the
    change, the request and the answer (None: superseded), and the text shown.
    """

    at: int
    cause: str
    changed: float
    sent: float
    answered: float | None = None
    text: str = ""
    item: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Typed:
    """A session at one site: its seconds and keys, the characters that Tab inserted (`taken`), all requests of the
    editor, the completions requested from the daemon, the number of tokens it wrote, and the server's counters.
    """

    seconds: float = 0.0
    keys: int = 0
    taken: int = 0
    waits: dict[int, float] = field(default_factory=dict)  # by characters typed: seconds until the next change
    requests: list[EditorRequest] = field(default_factory=list)
    streams: Sequence[Stream] = ()
    tokens: int = 0
    counters: dict[str, int] = field(default_factory=dict)


class Typist:
    """Types at one site, once. With `taking`, it accepts suggestions whose first line is correct with Tab."""

    def __init__(self, editor: Editor, site: TypingSite, keys: Sequence[Key], taking: bool) -> None:
        self._editor, self._site, self._taking = editor, site, taking
        self._keys = list(keys)
        self._version, self._at = 1, 0
        self._changed = self._seen = 0.0
        self._ghost = ""
        self._shown: EditorRequest | None = None  # the request whose answer is the ghost text
        self._more, self._news = asyncio.Event(), asyncio.Event()
        self._requesting: asyncio.Task[None] | None = None
        self.typed = Typed()

    async def type(self) -> Typed:
        """Open the site, type the whole text, and leave the document open."""
        self._editor.on_more = self._on_more
        self._editor.open(self._site, self._site.after(0))
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
            await self._stop_requesting()
        self.typed.seconds = time.perf_counter() - begun
        return self.typed

    async def _decide(self, due: float) -> bool:
        """Wait until the next key is due or the suggestion is taken. Return whether it is taken."""
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
        """Return the text that Tab would insert: the whole ghost text or its first line, if it matches; else ""."""
        whole, line = self._ghost, first_line(self._ghost)
        left = self._site.typed[self._at :]
        found = whole if left.startswith(whole) else line if left.startswith(line) else ""
        return found if len(found.strip()) >= MIN_TAKEN else ""

    async def _change(self, text: str, cause: str) -> None:
        await self._stop_requesting()
        self._version += 1
        before, now = self._changed, time.perf_counter()
        self.typed.waits[self._at] = now - before
        self._editor.insert(self._site, self._version, position(self._site, self._at), text)
        if cause == "tab":
            self.typed.taken += len(text)
            if text == self._ghost and self._shown is not None and self._shown.item is not None:
                self._editor.accept(self._shown.item)
        self.typed.keys += cause == "key"
        self._changed, self._at = now, self._at + len(text)
        self._ghost = self._ghost[len(text) :] if self._ghost.startswith(text) else ""
        self._skip_keys()
        self._requesting = asyncio.get_running_loop().create_task(self._request(cause))

    def _skip_keys(self) -> None:
        """Drop the keys, and the part of a key, that are already in the document."""
        while self._keys and self._keys[0].end <= self._at:
            self._keys.pop(0)
        if self._keys and self._keys[0].start < self._at:
            key = self._keys[0]
            self._keys[0] = Key(self._at, key.text[self._at - key.start :], key.wait)

    async def _stop_requesting(self) -> None:
        await stop(self._requesting)
        self._requesting = None

    async def _request(self, cause: str) -> None:
        """Request a completion, and again whenever there is more, until the next change."""
        self._more.clear()
        await asyncio.sleep(self._changed + DEBOUNCE - time.perf_counter())
        while True:
            request = EditorRequest(self._at, cause, self._changed, time.perf_counter())
            self.typed.requests.append(request)
            number, reply = self._editor.complete(self._site, position(self._site, self._at))
            try:
                self._show(request, await reply)
            except asyncio.CancelledError:
                self._editor.cancel(number)
                raise
            await self._more.wait()
            self._more.clear()
            cause = "more"

    def _show(self, request: EditorRequest, reply: Mapping[str, Any]) -> None:
        """Show an answer as ghost text."""
        if "error" in reply:
            return
        request.answered = time.perf_counter()
        items = reply["result"]["items"]
        if items:
            request.item = items[0]
            request.text = shown_text(items[0], position(self._site, self._at))
        if not (self._ghost and request.text.startswith(self._ghost)):
            self._seen = request.answered
        self._ghost, self._shown = request.text, request
        self._news.set()

    def _on_more(self, uri: str, version: int) -> None:
        if (uri, version) == (self._site.uri, self._version):
            self._more.set()


async def stop(request: asyncio.Task[None] | None) -> None:
    """Cancel a request that is still open. Raise its error if it failed."""
    if request is not None:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        if not request.cancelled() and (error := request.exception()) is not None:
            raise error


def keystrokes(text: str, seed: int, pace: float = 1.0) -> list[Key]:
    """Return the keys of a text; at a pace of 2 they come twice as fast."""
    dice = random.Random(seed)
    found = [(match.start(), match.group()) for match in _KEYS.finditer(text)]
    efforts = [_effort(text[start - 1 : start], key) for start, key in found]
    usual = MEAN / (sum(efforts) / len(efforts)) if efforts else 0.0
    keys = []
    for (start, key), effort in zip(found, efforts, strict=True):
        wait = usual * effort * _skewed(dice) + _pause(dice, text[:start], key)
        keys.append(Key(start, key, wait / pace))
    return keys


def _effort(before: str, key: str) -> float:
    if not key.isalnum() and key != " ":
        return SIGN
    return IN_WORD if before.isalnum() and key.isalnum() else WORD


def _skewed(dice: random.Random) -> float:
    """Return a random number with mean 1 and the published spread."""
    sigma = math.sqrt(math.log(1 + SPREAD**2))
    return dice.lognormvariate(-(sigma**2) / 2, sigma)


def _pause(dice: random.Random, before: str, key: str) -> float:
    """Return the seconds of thinking before a key. Every key draws the same number of random values, so that equal
    parts of two texts have equal times.
    """
    chance, length = dice.random(), dice.lognormvariate(0.0, PAUSE_SIGMA)
    if not before or before.rstrip(" \t").endswith("\n"):
        return min(MAX_PAUSE, LINE_PAUSE * length) if key.strip() else 0.0
    if chance < WORD_PAUSES and key.isalnum() and not before[-1:].isalnum():
        return min(MAX_PAUSE, WORD_PAUSE * length)
    return 0.0


async def type_site(editor: Editor, proxy: Proxy, site: TypingSite, keys: Sequence[Key], *, taking: bool) -> Typed:
    """Type at a site and close the document."""
    tokens, first, counters = await proxy.tokens(), len(proxy.streams), await editor.counters()
    typed = await Typist(editor, site, keys, taking).type()
    editor.close(site)
    after = await editor.counters()
    typed.counters = {name: after[name] - counters[name] for name in ("fromMemory", "fromDaemon", "cutByTheClock")}
    typed.streams, typed.tokens = proxy.streams[first:], await proxy.tokens() - tokens
    return typed


async def complete_unhurried(editor: Editor, site: TypingSite, at: int) -> str:
    """Return the answer after `at` characters with practically no time limit."""
    editor.configure(budgetMs=UNHURRIED_MS)
    editor.open(site, site.after(at))
    try:
        where = position(site, at)
        reply = await editor.complete(site, where, whole=True)[1]
        items = reply["result"]["items"] if "result" in reply else []
        return shown_text(items[0], where) if items else ""
    finally:
        editor.close(site)
        editor.configure(budgetMs=BUDGET_MS)


def position(site: TypingSite, at: int) -> dict[str, int]:
    """Return the cursor's position after `at` characters."""
    end = site.begin + at
    return {"line": site.text.count("\n", 0, end), "character": end - (site.text.rfind("\n", 0, end) + 1)}


def shown_text(item: Mapping[str, Any], cursor: Mapping[str, int]) -> str:
    """Return an item's text after the cursor."""
    text: str = item["insertText"]
    return text[cursor["character"] - item["range"]["start"]["character"] :]


def first_line(text: str) -> str:
    """Return the text up to the end of its first line that is not empty."""
    start = len(text) - len(text.lstrip("\n"))
    end = text.find("\n", start)
    return text if end < 0 else text[:end]
