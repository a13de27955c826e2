"""Edits, requests and cancellations in any order over a socket.

The server's text always equals the client's, and no answer is for an outdated version.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.lsp.conversation import Editor, replacement, run
from tests.lsp.fake_daemon import FakeDaemon, talking

PIECES = ["a", "b(", ")", "\n", "\r\n", "😀", "é", "  ", "x = ", "日本", '"']


class Typist:
    """Types, requests and cancels at random; records the text of each version and the order of replies."""

    def __init__(self, client: Editor, seed: int) -> None:
        self.client, self.source = client, random.Random(seed)
        self.text, self.version = "x = 1\r\ny = '😀'\n", 1
        self.texts = {1: self.text}
        self.seen = 1  # the newest version known to be processed by the server
        self.edits = 0
        self.open: list[tuple[int, int]] = []
        self.answered = self.refused = 0
        self.stale: list[int] = []

    def position(self, offset: int) -> tuple[int, int]:
        r"""Return a UTF-16 position in a text with line ends \n and \r\n."""
        line = self.text.count("\n", 0, offset)
        start = self.text.rfind("\n", 0, offset) + 1
        return line, len(self.text[start:offset].encode("utf-16-le")) // 2

    def places(self) -> list[int]:
        return [at for at in range(len(self.text) + 1) if self.text[max(0, at - 1) : at + 1] != "\r\n"]

    def edit(self) -> None:
        """Make one or more changes at once, each in the text after the previous one."""
        changes = []
        for _ in range(self.source.choice([1, 1, 1, 3])):
            start = self.source.choice(self.places())
            end = min((at for at in self.places() if at >= start + self.source.choice([0, 0, 2])), default=start)
            piece = self.source.choice(PIECES) if len(self.text) < 300 else ""
            changes.append(replacement(*self.position(start), *self.position(end), piece))
            self.text = self.text[:start] + piece + self.text[end:]
        self.version += 1
        self.texts[self.version] = self.text
        self.client.change(self.version, *changes)
        self.edits += len(changes)
        version, future = (
            self.version,
            self.client.begin("workspace/executeCommand", {"command": "codespec.explain"})[1],
        )
        future.add_done_callback(lambda _: self.saw(version))

    def saw(self, version: int) -> None:
        self.seen = max(self.seen, version)

    def ask(self) -> asyncio.Future[dict[str, Any]]:
        number, reply = self.client.ask(*self.position(self.source.choice(self.places())))
        version = self.version
        self.open.append((number, version))
        reply.add_done_callback(lambda done: self.replied(version, done.result()))
        return reply

    def replied(self, version: int, reply: dict[str, Any]) -> None:
        if "error" in reply:
            assert reply["error"]["code"] in (-32800, -32801), reply
            self.refused += 1
            return
        self.answered += 1
        if version < self.seen:
            self.stale.append(version)

    def step(self) -> None:
        kind = self.source.random()
        if kind < 0.6:
            self.edit()
        elif kind < 0.9 or not self.open:
            self.ask()
        else:
            self.client.cancel(self.source.choice(self.open)[0])


async def type_on(typist: Typist, fake: FakeDaemon, edits: int) -> None:
    """Type; sometimes wait for an answer, which the daemon gives early or late."""
    while typist.edits < edits:
        fake.script = typist.source.choice([None, ["foo", "(bar)\n"], ["😀 "], []])
        typist.step()
        if typist.source.random() < 0.1:
            reply = typist.ask()
            while not reply.done() and typist.source.random() < 0.95:
                await asyncio.sleep(0.001)
        for asked in fake.asked[-3:]:
            if typist.source.random() < 0.3:
                asked.say(typist.source.choice(["foo", "(bar)\n", "😀 "]))
                asked.end()


@pytest.mark.parametrize("edits", [1_000, pytest.param(100_000, marks=pytest.mark.full)])
def test_edits_questions_and_cancels_in_any_order(edits: int) -> None:
    async def scenario() -> None:
        async with talking(budget_ms=5) as (client, fake):
            typist = Typist(client, seed=6)
            client.open(typist.text)
            await type_on(typist, fake, edits)
            fake.script = ["end"]
            typist.edit()
            line, character = typist.position(len(typist.text))
            (item,) = await client.items(line, character, trigger=1)
            last = typist.text.split("\n")[-1]
            kept = last.encode("utf-16-le")[: 2 * item["range"]["start"]["character"]].decode("utf-16-le")
            assert kept + item["insertText"] == last + "end"
            assert len({asked.body["version"] for asked in fake.asked}) > edits // 200
            for asked in fake.asked:
                typed = typist.texts[asked.body["version"]].replace("\r\n", "\n").replace("\r", "\n")  # as models read
                assert asked.body["prefix"] + asked.body["suffix"] == typed
            assert not typist.stale and typist.answered > edits // 200 and typist.refused > edits // 200

    run(scenario(), seconds=900)
