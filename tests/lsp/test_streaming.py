"""A daemon that accepts requests but does not answer: when the user is told, and when not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from codespec_lsp.daemon import EVENT_TIMEOUT_S, HANGS, HEALTH_INTERVAL_S, Daemon
from codespec_lsp.settings import EditorSettings

from codespec.client.daemon_client import Health
from codespec.errors import Absent, DaemonError
from tests.lsp.virtual_time import run_virtually

WAIT = 2.0  # seconds until health reports "silent"


class Hanging:
    """Does not answer while it `hangs`, and its health check is slow. `busy`: only completions wait."""

    def __init__(self) -> None:
        self.hangs = self.busy = False
        self.error: DaemonError | None = None
        self.asked = self.looks = 0

    def find(self, _settings: EditorSettings) -> tuple[Hanging, Hanging]:
        """Return the client and the starter."""
        return self, self

    async def ensure(self) -> None:
        """Start no other daemon."""

    async def events(self, _body: Mapping[str, Any], _session: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        self.asked += 1
        if self.error:
            raise self.error
        while self.hangs or self.busy:
            await asyncio.sleep(0.1)
        yield "done", {"choice": 0, "finish_reason": "stop"}

    async def health(self) -> Health:
        self.looks += 1
        if self.hangs:
            await asyncio.sleep(WAIT)
            return Health("silent")
        return Health("ready")


class Scene:
    """A watched daemon, and the messages to the user."""

    def __init__(self) -> None:
        self.daemon, self.told = Hanging(), list[tuple[str, str]]()
        self.watched = Daemon(self.daemon, self.hear)  # type: ignore[arg-type]

    def hear(self, state: str, sentence: str) -> None:
        if (state, sentence) != [("ready", ""), *self.told][-1]:
            self.told.append((state, sentence))

    async def ask(self) -> None:
        await self.watched.warm_up({})

    async def type_on(self, questions: int, pause: float = 0.3) -> None:
        """Request a completion and cancel it at the next key."""
        for _ in range(questions):
            task = asyncio.ensure_future(self.ask())
            await asyncio.sleep(pause)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def end(self) -> None:
        await self.watched.close()


def test_two_questions_without_a_word_are_told_and_its_return_as_well() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.daemon.hangs = True
        await scene.type_on(1)
        await asyncio.sleep(60)
        assert not scene.told and not scene.daemon.looks, "one question alone tells nothing"
        await scene.type_on(1)
        await asyncio.sleep(EVENT_TIMEOUT_S + 2 * WAIT + HEALTH_INTERVAL_S)
        assert scene.told == [("unwell", HANGS)]
        asked = scene.daemon.asked
        await scene.type_on(20)
        assert scene.daemon.asked == asked, "nothing more is sent to it"
        waiting = asyncio.ensure_future(scene.ask())
        await asyncio.sleep(300)
        assert scene.told == [("unwell", HANGS)], "told once"
        scene.daemon.hangs = False
        await waiting
        assert scene.told == [("unwell", HANGS), ("ready", "")] and scene.daemon.asked == asked + 1
        looks = scene.daemon.looks
        await asyncio.sleep(60)
        assert scene.daemon.looks == looks, "and it is left in peace"

    run_virtually(scenario())


def test_a_late_word_ends_the_silence_at_once() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.daemon.hangs = True
        await scene.type_on(1)
        asked = asyncio.ensure_future(scene.ask())
        await asyncio.sleep(EVENT_TIMEOUT_S + 2 * WAIT + HEALTH_INTERVAL_S + 0.5)
        assert scene.told == [("unwell", HANGS)]
        scene.daemon.hangs = False
        await asked
        scene.daemon.hangs = True
        before = scene.daemon.asked
        await scene.type_on(2)
        assert scene.daemon.asked == before + 2, "it is asked again before the next look at its health"
        await asyncio.sleep(EVENT_TIMEOUT_S + 2 * WAIT + HEALTH_INTERVAL_S)
        assert scene.told == [("unwell", HANGS), ("ready", ""), ("unwell", HANGS)]
        await scene.end()

    run_virtually(scenario())


def test_a_daemon_that_works_is_not_suspected() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.daemon.busy = True
        await scene.type_on(30)
        assert 0 < scene.daemon.looks <= 30 * 0.3 / EVENT_TIMEOUT_S and not scene.told
        scene.daemon.busy = False
        looks = scene.daemon.looks
        await scene.type_on(30)
        assert scene.daemon.looks <= looks + 1 and not scene.told
        await scene.end()

    run_virtually(scenario())


@pytest.mark.parametrize("error", [DaemonError("It is starting.", retry_after=1.0), Absent("It is gone.")])
def test_a_refusal_is_a_word_too(error: DaemonError) -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.daemon.error = error
        await scene.type_on(5, pause=2.0)
        await asyncio.sleep(60)
        assert scene.daemon.asked > 5 and not scene.daemon.looks and ("unwell", HANGS) not in scene.told

    run_virtually(scenario())
