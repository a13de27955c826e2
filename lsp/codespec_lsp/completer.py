"""From a question to its answer: the memory first, then the daemon; in time, never for a text that has changed.

Knows documents, texts and the clock; knows no protocol. A text goes on growing behind an answer that was cut by the
clock, and `tell_more` says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from codespec_lsp.buffer import Edit
from codespec_lsp.counters import Counters
from codespec_lsp.cut import safe
from codespec_lsp.desk import ContentModified, Desk, Offer, Question, Work
from codespec_lsp.documents import Document
from codespec_lsp.following import Following
from codespec_lsp.texts import Spot, Text, TypedAlong

# Seconds that a text goes on being written though nobody waits for it: typing along asks again, in VS Code 50 ms after
# a change, in Neovim 200 ms.
AFTER_CANCEL, AFTER_EDIT = 0.15, 0.4
MORE_EVERY = 0.1  # seconds between two words that there is more
RECENT = 0.3  # a change so long ago is what made the client ask


StartWriting = Callable[[Question, list[Text], int], "asyncio.Task[None]"]


class Completer:
    """For one client. `write` begins to write texts (the number is 0 for the best one, else how many alternatives),
    `tell_more` says that a document's answer has grown, if the client wants to hear it."""

    def __init__(
        self,
        write: StartWriting,
        tell_more: Callable[[Document], bool],
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self.memory = TypedAlong()
        self._write = write
        self._tell_more = tell_more
        self._counters = counters
        self._clock = clock
        self._desks: dict[str, Desk] = {}

    def take(self, question: Question) -> None:
        """A question came: an older one of its document gets no answer. To be called when it is received."""
        desk = self._desk(question.document)
        desk.supersede()
        desk.newest = question

    def edited(self, document: Document, edit: Edit) -> None:
        """The document changed: what does not go on from there stops at once."""
        desk = self._desk(document)
        if desk.answering is not None:
            desk.answering.wake.set()
        desk.stop_others()
        if desk.work is not None:
            desk.work.following.follow(edit, desk.work.text.text)
            if desk.work.following.lost:
                desk.stop()
            else:
                desk.let_linger(AFTER_EDIT)

    def close(self, document: Document) -> None:
        """The document is gone."""
        desk = self._desks.pop(document.uri, None)
        if desk is not None:
            desk.supersede()
            desk.stop()
        self.memory.forget(document.uri)

    async def answer(self, question: Question, budget: float, alternatives: int) -> list[Offer]:
        """What to show, the best first; [] for nothing. Raises ContentModified."""
        desk = self._desk(question.document)
        if question.stale:
            raise ContentModified
        desk.answering, follows, desk.told = question, desk.follows(question), False
        several = alternatives if question.explicit and not follows else 1
        try:
            found = self._recall(desk, question)
            text = self._find_or_start(desk, question, found)
            if several > max(1, len(found)) and not _is_nothing(text):
                self._start_others(desk, question, several - max(1, len(found)))
            await self._wait(desk, question, text, budget, several)
            return self._offers(desk, question, text, several)
        finally:
            if desk.answering is question:
                desk.answering = None
            if desk.asked is not question and desk.newest is question:
                desk.let_linger(AFTER_CANCEL)

    def _desk(self, document: Document) -> Desk:
        return self._desks.setdefault(document.uri, Desk())

    def _recall(self, desk: Desk, question: Question) -> list[tuple[Text, str]]:
        """What is known at a question's place; what was shown last goes first."""
        found = self.memory.find(question.spot)
        return sorted(found, key=lambda each: desk.shown is None or each[0] is not desk.shown.text)

    def _find_or_start(self, desk: Desk, question: Question, found: list[tuple[Text, str]]) -> Text:
        """The text that answers: one that is known or under way, else a new one."""
        if found:
            text, rest = found[0]
            self._counters.from_memory += 1
            if not text.growing and not text.done and text.resumed < 1:
                self._resume(desk, question, text, rest)
            elif desk.work is not None and desk.work.text is text:
                desk.work.hold()
            return text
        desk.stop()
        text = Text(question.spot)
        self._counters.from_daemon += 1
        desk.work = Work(text, self._write(question, [text], 0), Following(question.offset))
        text.listeners.append(lambda: self._grown(question.document, text))
        self.memory.keep(text)
        return text

    def _resume(self, desk: Desk, question: Question, text: Text, rest: str) -> None:
        """Goes on with a text whose writing was stopped, behind what it has."""
        desk.stop()
        text.resumed += 1
        typed = len(text.text) - len(rest)
        spot = question.spot
        ahead = Question(
            question.document,
            Spot(spot.uri, spot.prefix + rest, spot.suffix, spot.offset),
            question.offset + len(rest),
            question.version,
            question.received,
            in_document=False,
        )
        self._counters.from_daemon += 1
        desk.work = Work(text, self._write(ahead, [text], 0), Following(question.offset - typed, typed))

    def _start_others(self, desk: Desk, question: Question, count: int) -> None:
        desk.stop_others()
        desk.others = [Text(question.spot) for _ in range(count)]
        desk.others_task = self._write(question, desk.others, count)
        for text in desk.others:
            text.listeners.append(question.wake.set)
            self.memory.keep(text)

    async def _wait(self, desk: Desk, question: Question, text: Text, budget: float, several: int) -> None:
        """Until the text is whole, or the time is over, or what goes on from what is shown can be shown. Raises
        ContentModified."""
        recent = question.received - question.document.changed < RECENT and not question.explicit
        end = (question.document.changed if recent else question.received) + budget
        others = desk.others if several > 1 else []
        known = desk.shown is not None and desk.shown.text is text

        def listen() -> None:
            if known or not text.growing:  # else a piece more changes nothing
                question.wake.set()

        text.listeners.append(listen)
        try:
            while not self._enough(question, text, others, known):
                left = end - self._clock()
                if left <= 0:
                    self._counters.cut_by_the_clock += 1
                    return
                question.wake.clear()
                await _sleep_until(question.wake, left)
        finally:
            text.listeners.remove(listen)

    @staticmethod
    def _enough(question: Question, text: Text, others: list[Text], known: bool) -> bool:
        if question.stale:
            raise ContentModified
        if any(other.growing for other in others):
            return False
        return not text.growing or (known and bool(safe(text.spot.rest(question.spot, text.text) or "")))

    def _offers(self, desk: Desk, question: Question, text: Text, most: int) -> list[Offer]:
        texts = [text, *(other for other, _ in self._recall(desk, question) if other is not text)]
        offers: list[Offer] = []
        for one in texts:
            rest = one.spot.rest(question.spot, one.text) or ""
            shown = rest if one.done else safe(rest)
            if shown and not any(shown == offer.rest for offer in offers):
                offers.append(Offer(one, shown, rest))
        desk.asked = question
        desk.shown = offers[0] if offers else Offer(text, "", "")
        return offers[:most]

    def _grown(self, document: Document, text: Text) -> None:
        """A text grew: if it is the one that was answered with, the client is told that there is more."""
        desk = self._desks.get(document.uri)
        if desk is None or desk.asked is None or desk.shown is None or desk.answering is not None:
            return
        if desk.shown.text is not text or desk.asked.stale:
            return
        rest = text.spot.rest(desk.asked.spot, text.text) or ""
        shown = rest if text.done else safe(rest)
        if len(shown) <= len(desk.shown.rest) or (desk.told and not text.done):
            return
        wait = desk.told_at + MORE_EVERY - self._clock()
        if wait > 0 and not text.done:
            if desk.later is None:
                desk.later = asyncio.get_running_loop().call_later(wait, self._grown_later, document, text)
            return
        desk.told, desk.told_at = self._tell_more(document), self._clock()

    def _grown_later(self, document: Document, text: Text) -> None:
        desk = self._desks.get(document.uri)
        if desk is not None:
            desk.later = None
            self._grown(document, text)


def _is_nothing(text: Text) -> bool:
    """Whether it is known that there is nothing to complete."""
    return text.done and not text.text


async def _sleep_until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
