"""Many mixed requests, half of them abandoned: every finished text is the engine's own, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import threading
from typing import Any

import aiohttp

from codespec.api.types import CompletionRequest
from tests.pairs import prompts
from tests.server.conftest import Plain
from tests.server.daemons import Served, wait_for

COUNT, TOGETHER = 120, 16
Kind = tuple[str, dict[str, Any], str]


def kinds(prefix: str, suffix: str, tokens: int) -> list[Kind]:
    """Return the same completion in each dialect: path, body, and the kind of reply."""
    return [
        ("/v1/codespec/complete", {"prefix": prefix, "suffix": suffix, "max_tokens": tokens, "shape": "raw"}, "text"),
        ("/v1/completions", {"prompt": prefix, "suffix": suffix, "max_tokens": tokens}, "choices"),
        ("/v1/completions", {"prompt": prefix, "suffix": suffix, "max_tokens": tokens, "stream": True}, "choices"),
        ("/api/generate", {"prompt": prefix, "suffix": suffix, "options": {"num_predict": tokens}}, "response"),
    ]


def read(body: bytes, key: str) -> str:
    """Return the text of a reply, streamed or whole."""
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n")]
    parts = [json.loads(line) for line in lines if line.startswith("{")]
    if key == "choices":
        return "".join(choice["text"] for part in parts for choice in part["choices"])
    return "".join(part.get(key, "") for part in parts)


class Load:
    """The clients, in one event loop; `found` holds prompts, token counts and the received texts."""

    def __init__(self, served: Served, count: int) -> None:
        self.served = served
        self.count = count
        self.random = random.Random(0)
        self.found: list[tuple[int, int, str]] = []
        self.given_up = 0

    async def run(self) -> None:
        """Send all requests, some at a time."""
        room = asyncio.Semaphore(TOGETHER)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{self.served.port}") as session:
            await asyncio.gather(*(self.one(session, room, number) for number in range(self.count)))

    async def one(self, session: aiohttp.ClientSession, room: asyncio.Semaphore, number: int) -> None:
        """Send one request, and read it to its end or abandon it at some moment."""
        async with room:
            place, tokens = self.random.randrange(8), self.random.randrange(7, 11)
            path, body, key = kinds(*pair(place), tokens)[self.random.randrange(4)]
            patience = self.random.uniform(0.0, 0.15) if number % 2 else None
            try:
                async with asyncio.timeout(patience), session.post(path, json=body) as reply:
                    assert reply.status == 200
                    self.found.append((place, tokens, read(await reply.read(), key)))
            except TimeoutError:
                self.given_up += 1


def pair(place: int) -> tuple[str, str]:
    text = prompts(8)[place][:160]
    return text, "\n    return self\n" if place % 2 else ""


def test_mixed_requests_half_of_them_given_up(toy: Served, plain: Plain) -> None:
    load = Load(toy, COUNT)
    threads = num_threads()
    asyncio.run(load.run())
    assert load.given_up >= COUNT // 8 and len(load.found) >= COUNT // 2
    check_texts(load, plain)
    check_nothing_is_left(toy)
    assert num_threads() == threads


def num_threads() -> int:
    """Return the number of threads without those the event loop keeps for short calls."""
    return sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate())


def check_texts(load: Load, plain: Plain) -> None:
    """Assert that every finished text is the engine's own."""
    assert len({found[:2] for found in load.found}) >= 16
    for place, tokens, text in set(load.found):
        prefix, suffix = pair(place)
        assert text == plain(CompletionRequest(prefix=prefix, suffix=suffix, max_tokens=tokens))[0].text


def check_nothing_is_left(served: Served) -> None:
    """Assert that no request, slot or handler is left."""
    assert wait_for(lambda: served.daemon.num_open == 0 and is_free(served))
    assert wait_for(lambda: open_tasks(served) == 0), "a handler is left"


def is_free(served: Served) -> bool:
    """Return whether every slot is available, checked between two rounds."""

    async def look() -> bool:
        assert served.source.loaded is not None
        engine = served.source.loaded.engine
        return await served.source.call(
            lambda: engine.queue.idle_for(0.0) is None and engine._batch.pool.num_taken == 0
        )

    return asyncio.run_coroutine_threadsafe(look(), served.loop).result(60)


def open_tasks(served: Served) -> int:
    """Return the number of running handlers, without this request and idle connections."""

    async def count() -> int:
        gc.collect()
        names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
        return len([name for name in names if "RequestHandler.start" not in name]) - 1

    return asyncio.run_coroutine_threadsafe(count(), served.loop).result(60)
