"""What goes on for one document: its questions, the text that is being written for it, what was answered last.

Knows texts, tasks and the loop's timers; decides nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from codespec_lsp.documents import Document
from codespec_lsp.following import Following
from codespec_lsp.texts import Spot, Text


class ContentModified(Exception):
    """The document changed, or a newer question came: this one gets no answer."""


@dataclass(eq=False, slots=True)
class Question:
    """What a client asks, as its document was then. `received` is the clock's time, `version` the document's;
    `in_document` says that all of the spot's text stands there."""

    document: Document
    spot: Spot
    offset: int
    version: int
    received: float
    explicit: bool = False
    in_document: bool = True
    superseded: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def stale(self) -> bool:
        """Whether it is not to be answered any more."""
        return self.superseded or self.document.version != self.version


@dataclass(frozen=True, slots=True)
class Offer:
    """A text to show at a question's place: `rest` of the `full` rest that is there so far."""

    text: Text
    rest: str
    full: str


@dataclass(eq=False, slots=True)
class Work:
    """A text under way for a document, and where it stands in it."""

    text: Text
    task: asyncio.Task[None]
    following: Following
    linger: asyncio.TimerHandle | None = None

    def hold(self) -> None:
        """Somebody wants it."""
        if self.linger is not None:
            self.linger.cancel()
            self.linger = None


@dataclass(eq=False, slots=True)
class Desk:
    """What goes on for one document: the newest question and the one being answered, the text that is written and its
    alternatives, and what was answered last."""

    newest: Question | None = None
    answering: Question | None = None
    work: Work | None = None
    others: list[Text] = field(default_factory=list)
    others_task: asyncio.Task[None] | None = None
    shown: Offer | None = None
    asked: Question | None = None
    told: bool = False  # that there is more, and the client has not asked since
    told_at: float = 0.0
    later: asyncio.TimerHandle | None = None

    def follows(self, question: Question) -> bool:
        """Whether a question is only what the word that there is more brought about."""
        return self.told and self.asked is not None and self.asked.version == question.version

    def supersede(self) -> None:
        """The questions that are open get no answer."""
        for question in (self.newest, self.answering):
            if question is not None:
                question.superseded = True
                question.wake.set()

    def let_linger(self, seconds: float) -> None:
        """Nobody waits for the text at the moment: it goes on for a while, if there is something to type along."""
        work = self.work
        if work is None or work.task.done():
            return
        if not work.text.text:
            self.stop()
            return
        work.hold()
        work.linger = asyncio.get_running_loop().call_later(seconds, self.stop)

    def stop(self) -> None:
        """Nothing is written any more."""
        work, self.work = self.work, None
        if work is not None:
            work.hold()
            work.task.cancel()
        self.stop_others()

    def stop_others(self) -> None:
        """The alternatives are not written any more."""
        if self.others_task is not None:
            self.others_task.cancel()
        self.others, self.others_task = [], None
