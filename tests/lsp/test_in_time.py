"""Answers arrive within the budget, whatever the daemon and the user do, on a clock that only the test advances."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from itertools import pairwise

from codespec_lsp.buffer import Buffer
from codespec_lsp.completer import MORE_INTERVAL_S, Completer, ContentModified, PendingRequest
from codespec_lsp.completions import CachedCompletion, EditRange, Suggestion
from codespec_lsp.documents import Document
from codespec_lsp.prompt import build_prompt
from codespec_lsp.status import Counters
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types

from tests.lsp.virtual_time import run_virtually

BUDGET, EXPLICIT_BUDGET = 0.6, 5.0
SLACK = 1e-6
NOTHING = EditRange(types.Range(types.Position(0, 0), types.Position(0, 0)), "", "\n")
PIECES = ("foo", "(", "a, b", ")\n", " = 1\n    ", "x")


@dataclass
class Reply:
    """A request with its result: suggestions, or None if its document has changed."""

    request: PendingRequest
    end: float  # end of the budget
    at: float = -1.0
    suggestions: list[Suggestion] | None = None


@dataclass
class Scene:
    """An editor, a completer and a daemon with scripted output."""

    document: Document = field(default_factory=lambda: Document("file:///a.py", "python", 1, Buffer("x = ")))
    writing: list[CachedCompletion] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    edits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = asyncio.get_running_loop().time
        self.completer = Completer(self.write, lambda _: True, Counters())

    def write(
        self, _request: PendingRequest, completions: list[CachedCompletion], _alternatives: int
    ) -> asyncio.Task[None]:
        for completion in completions:
            completion.growing = True
        self.writing += completions

        async def until_stopped() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                for completion in completions:
                    if not completion.done:
                        completion.end(done=False)

        return asyncio.get_running_loop().create_task(until_stopped())

    def say(self, piece: str) -> None:
        for text in self.writing:
            if text.growing:
                text.grow(piece)

    def finish(self) -> None:
        for text in self.writing:
            if text.growing:
                text.end(done=True)

    def type(self, text: str) -> None:
        buffer = self.document.buffer
        tip = buffer.position(len(buffer.lines), 0)
        edit = buffer.replace(tip, tip, text)
        self.document.edited(edit)
        self.document.changed = self.clock()
        self.edits.append(self.clock())
        self.completer.edited(self.document, edit)

    def ask(self, explicit: bool, column: int | None = None) -> asyncio.Task[None]:
        """Request a completion at the end of the text, or at a column of its first line."""
        buffer, now = self.document.buffer, self.clock()
        tip = buffer.position(len(buffer.lines) if column is None else 0, column or 0)
        prompt = build_prompt(self.document.uri, buffer, tip)
        revision, offset = self.document.revision, buffer.offset(tip)
        assert self.completer.prompt_at(self.document, offset) in (None, prompt), "as if built from the document"
        request = PendingRequest(self.document, prompt, offset, revision, now, NOTHING, NOTHING, explicit)
        self.completer.receive(request)
        reply = Reply(request, now + (EXPLICIT_BUDGET if explicit else BUDGET))
        self.replies.append(reply)
        return asyncio.get_running_loop().create_task(self.answer(reply))

    async def answer(self, reply: Reply) -> None:
        budget = EXPLICIT_BUDGET if reply.request.explicit else BUDGET
        with contextlib.suppress(ContentModified):
            reply.suggestions = await self.completer.answer(reply.request, budget, 3)
        reply.at = self.clock()


waits = st.sampled_from([0.0, 0.001, 0.03, 0.05, 0.15, 0.2, 0.4, 0.7, 6.0])
actions = st.sampled_from(["ask", "ask", "ask explicitly", "type x", "type foo", *PIECES, "finish"])
stories = st.lists(st.tuples(waits, actions), min_size=2, max_size=25)


async def play(story: list[tuple[float, str]]) -> Scene:
    scene, asked = Scene(), []
    for wait, action in story:
        await asyncio.sleep(wait)
        if action.startswith("ask"):
            asked.append(scene.ask(explicit=action != "ask"))
        elif action.startswith("type "):
            scene.type(action.removeprefix("type "))
        elif action == "finish":
            scene.finish()
        else:
            scene.say(action)
    await asyncio.sleep(10)
    assert all(task.done() for task in asked), "every question is answered"
    scene.completer.close(scene.document)
    await asyncio.gather(*asked)
    return scene


@given(stories)
def test_every_answer_comes_within_its_budget(story: list[tuple[float, str]]) -> None:
    scene = run_virtually(play(story))
    for reply in scene.replies:
        assert reply.request.received <= reply.at <= reply.end + SLACK
        if reply.suggestions is None:
            newer = [other.request.received for other in scene.replies if other is not reply] + scene.edits
            assert any(abs(reply.at - moment) < SLACK for moment in newer), "what overtook it ended it at once"


def test_of_questions_that_arrive_together_only_the_newest_place_is_answered() -> None:
    """Two parts of an editor send requests at one position, and the cursor moves before either is handled."""

    async def story() -> tuple[list[bool], int]:
        scene = Scene()
        asked = [scene.ask(explicit=False), scene.ask(explicit=False), scene.ask(explicit=False, column=0)]
        await asyncio.sleep(0.01)
        scene.say("foo")
        scene.finish()
        await asyncio.gather(*asked)
        return [reply.suggestions is not None for reply in scene.replies], len(scene.writing)

    assert run_virtually(story()) == ([False, False, True], 1), "and the model writes for that one only"


def test_a_growing_text_is_told_of_ten_times_a_second_at_most() -> None:
    """Although the client requests again at once, and the text grows every hundredth of a second."""

    async def scenario() -> list[float]:
        scene, told = Scene(), [0.0]

        def tell(_: Document) -> bool:
            told.append(scene.clock())
            return True

        scene.completer = Completer(scene.write, tell, Counters())
        await scene.ask(explicit=False)
        for _ in range(200):
            heard = len(told)
            await asyncio.sleep(0.01)
            scene.say("word ")
            if len(told) > heard:
                await scene.ask(explicit=False)
        scene.completer.close(scene.document)
        return told[1:]

    told = run_virtually(scenario())
    waits = [after - before for before, after in pairwise(told)]
    assert len(told) >= 10 and min(waits) >= MORE_INTERVAL_S - SLACK and max(waits) <= 2 * MORE_INTERVAL_S


def test_a_slow_text_is_answered_with_its_beginning_when_the_time_is_over() -> None:
    async def story() -> tuple[float, list[str]]:
        scene = Scene()
        scene.type("y")
        await asyncio.sleep(0.05)
        task = scene.ask(explicit=False)
        for piece in ("foo(a, b", ", c"):
            await asyncio.sleep(0.2)
            scene.say(piece)
        await task
        return scene.replies[0].at, [each.shown for each in scene.replies[0].suggestions or []]

    at, texts = run_virtually(story())
    assert abs(at - BUDGET) < SLACK, "the budget counts from the change"
    assert texts == ["foo(a, b, "]


def test_a_text_that_is_whole_waits_for_nothing() -> None:
    async def story() -> float:
        scene = Scene()
        task = scene.ask(explicit=False)
        await asyncio.sleep(0.1)
        scene.say("foo")
        scene.finish()
        await task
        return scene.replies[0].at

    assert abs(run_virtually(story()) - 0.1) < SLACK


def test_a_text_that_comes_after_the_time_is_there_when_the_client_asks_again() -> None:
    """As for a client without `codespec/more`: no key, no new work, and no waiting."""

    async def story() -> tuple[list[list[str]], list[float], int]:
        scene = Scene()
        scene.type("y")
        for piece in ("", "foo(a, ", "b)"):
            await scene.ask(explicit=False)
            await asyncio.sleep(2)
            scene.say(piece)
        scene.finish()
        await scene.ask(explicit=False)
        shown = [[each.shown for each in reply.suggestions or []] for reply in scene.replies]
        return shown, [reply.at - reply.request.received for reply in scene.replies], len(scene.writing)

    shown, waits, started = run_virtually(story())
    assert shown == [[], [], ["foo(a, "], ["foo(a, b)"]] and started == 1
    assert abs(waits[0] - BUDGET) < SLACK and max(waits[2:]) < SLACK
