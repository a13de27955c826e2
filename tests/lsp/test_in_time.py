"""Answers come in time, whatever the daemon does and the user types, by a clock that only the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from codespec_lsp.asking import find_spot
from codespec_lsp.buffer import Buffer
from codespec_lsp.completer import Completer
from codespec_lsp.counters import Counters
from codespec_lsp.desk import ContentModified, Offer, Question
from codespec_lsp.documents import Document
from codespec_lsp.texts import Text
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lsp.virtual_time import run_virtually

BUDGET, EXPLICIT_BUDGET = 0.6, 5.0
SLACK = 1e-6
PIECES = ("foo", "(", "a, b", ")\n", " = 1\n    ", "x")


@dataclass
class Reply:
    """A question with what came of it: offers, or None where its document moved on."""

    question: Question
    end: float  # when the budget is over
    at: float = -1.0
    offers: list[Offer] | None = None


@dataclass
class Desk:
    """An editor, a completer and a daemon that writes what the test says."""

    document: Document = field(default_factory=lambda: Document("file:///a.py", "python", 1, Buffer("x = ")))
    writing: list[Text] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    edits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = asyncio.get_running_loop().time
        self.completer = Completer(self.write, lambda _: True, Counters(), self.clock)

    def write(self, _question: Question, texts: list[Text], _others: int) -> asyncio.Task[None]:
        for text in texts:
            text.growing = True
        self.writing += texts

        async def until_stopped() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                for text in texts:
                    if not text.done:
                        text.stop()

        return asyncio.get_running_loop().create_task(until_stopped())

    def say(self, piece: str) -> None:
        for text in self.writing:
            if text.growing:
                text.grow(piece)

    def finish(self) -> None:
        for text in self.writing:
            if text.growing:
                text.end("stop")

    def type(self, text: str) -> None:
        buffer = self.document.buffer
        tip = buffer.place(len(buffer.lines), 0)
        edit = buffer.replace(tip, tip, text)
        self.document.version += 1
        self.document.changed = self.clock()
        self.edits.append(self.clock())
        self.completer.edited(self.document, edit)

    def ask(self, explicit: bool) -> asyncio.Task[None]:
        buffer, now = self.document.buffer, self.clock()
        tip = buffer.place(len(buffer.lines), 0)
        spot = find_spot(self.document.uri, buffer, tip)
        question = Question(self.document, spot, buffer.offset(tip), self.document.version, now, explicit)
        self.completer.take(question)
        reply = Reply(question, now + (EXPLICIT_BUDGET if explicit else BUDGET))
        self.replies.append(reply)
        return asyncio.get_running_loop().create_task(self.answer(reply))

    async def answer(self, reply: Reply) -> None:
        budget = EXPLICIT_BUDGET if reply.question.explicit else BUDGET
        with contextlib.suppress(ContentModified):
            reply.offers = await self.completer.answer(reply.question, budget, 3)
        reply.at = self.clock()


waits = st.sampled_from([0.0, 0.001, 0.03, 0.05, 0.15, 0.2, 0.4, 0.7, 6.0])
actions = st.sampled_from(["ask", "ask", "ask explicitly", "type x", "type foo", *PIECES, "finish"])
stories = st.lists(st.tuples(waits, actions), min_size=2, max_size=25)


async def play(story: list[tuple[float, str]]) -> Desk:
    desk, asked = Desk(), []
    for wait, action in story:
        await asyncio.sleep(wait)
        if action.startswith("ask"):
            asked.append(desk.ask(explicit=action != "ask"))
        elif action.startswith("type "):
            desk.type(action.removeprefix("type "))
        elif action == "finish":
            desk.finish()
        else:
            desk.say(action)
    await asyncio.sleep(10)
    assert all(task.done() for task in asked), "every question is answered"
    desk.completer.close(desk.document)
    await asyncio.gather(*asked)
    return desk


@settings(max_examples=100, deadline=None)
@given(stories)
def test_every_answer_comes_within_its_budget(story: list[tuple[float, str]]) -> None:
    desk = run_virtually(play(story))
    for reply in desk.replies:
        assert reply.question.received <= reply.at <= reply.end + SLACK
        if reply.offers is None:
            newer = [other.question.received for other in desk.replies if other is not reply] + desk.edits
            assert any(abs(reply.at - moment) < SLACK for moment in newer), "what overtook it ended it at once"


def test_a_slow_text_is_answered_with_its_beginning_when_the_time_is_over() -> None:
    async def story() -> tuple[float, list[str]]:
        desk = Desk()
        desk.type("y")
        await asyncio.sleep(0.05)
        task = desk.ask(explicit=False)
        for piece in ("foo(a, b", ", c"):
            await asyncio.sleep(0.2)
            desk.say(piece)
        await task
        return desk.replies[0].at, [offer.rest for offer in desk.replies[0].offers or []]

    at, texts = run_virtually(story())
    assert abs(at - BUDGET) < SLACK, "the budget counts from the change"
    assert texts == ["foo(a, b, "]


def test_a_text_that_is_whole_waits_for_nothing() -> None:
    async def story() -> float:
        desk = Desk()
        task = desk.ask(explicit=False)
        await asyncio.sleep(0.1)
        desk.say("foo")
        desk.finish()
        await task
        return desk.replies[0].at

    assert abs(run_virtually(story()) - 0.1) < SLACK
