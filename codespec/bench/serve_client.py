"""A client of the daemon's own endpoint with a stopwatch, and many of them in a closed loop. Knows HTTP and events;
knows no models and judges nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from codespec.errors import ConfigError
from codespec.token_file import TOKEN_VARIABLE

PATH = "/v1/codespec/complete"
SECONDS = 600.0  # for one reply
PHASES = ("prefill_ms", "draft_ms", "retokenize_ms", "verify_ms", "other_ms")
BROKE_OFF = "The daemon broke off ({}): see its log, and begin again."
Body = Mapping[str, Any]


@dataclass(slots=True)
class Reply:
    """One completion: its text, what each round wrote, the last event, and seconds from the request on."""

    text: str = ""
    rounds: list[str] = field(default_factory=list)
    done: Mapping[str, Any] = field(default_factory=dict)
    first: float | None = None  # until the first piece of text; None where there was none
    total: float = 0.0

    @property
    def stats(self) -> Mapping[str, Any]:
        """The engine's own account."""
        stats: Mapping[str, Any] = self.done["stats"]
        return stats

    @property
    def beyond_steps_ms(self) -> float:
        """What the client waited beyond the steps that the engine did for it."""
        busy: float = sum(self.stats[name] for name in PHASES)
        return self.total * 1000 - busy

    @property
    def beyond_engine_ms(self) -> float:
        """What the client waited beyond all that the engine did for it: building the prompt, and the steps."""
        admitting: float = self.stats["admit_ms"]
        return self.beyond_steps_ms - admitting

    @property
    def wire_ms(self) -> float:
        """What the client waited before its request had arrived and after its text was finished."""
        inside: float = self.stats["total_ms"]
        return self.total * 1000 - inside


@dataclass(frozen=True, slots=True)
class Pass:
    """All replies of a closed loop, in the order of the bodies, and its seconds from first to last."""

    replies: Sequence[Reply]
    seconds: float


class Client:
    """One address."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def facts(self) -> dict[str, Any]:
        """What the daemon says of itself."""
        try:
            props, health = await self._told("/props"), await self._told("/health")
            settings, mode = props["default_generation_settings"], health["mode"]
            names = {"model": props["model_alias"], "slots": props["total_slots"], "context": settings["n_ctx"]}
        except (aiohttp.ClientError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"No codespec daemon answers there ({type(error).__name__}): check --url.") from error
        return {**names, "mode": mode}

    async def _told(self, path: str) -> dict[str, Any]:
        async with self._session.get(path) as reply:
            told: dict[str, Any] = await reply.json()
            if reply.status != 200:
                raise ConfigError(f"The daemon can't be measured: {told['error']['message']}")
        return told

    async def complete(self, body: Body) -> Reply:
        """One completion, read to its end. ConfigError with the daemon's sentence where it gave none."""
        reply, begun = Reply(), time.perf_counter()
        try:
            async with self._session.post(PATH, json=body) as response:
                if response.status != 200:
                    raise ConfigError(f"The daemon refused: {(await response.json())['error']['message']}")
                name = ""
                async for line in response.content:
                    if line.startswith(b"event: "):
                        name = line[7:].strip().decode()
                    elif line.startswith(b"data: "):
                        _take(reply, name, json.loads(line[6:]), time.perf_counter() - begun)
        except aiohttp.ClientError as error:
            raise ConfigError(
                f"The daemon broke off ({type(error).__name__}): see its log, and begin again."
            ) from error
        reply.total = time.perf_counter() - begun
        if not reply.done:
            raise ConfigError(BROKE_OFF.format("in the middle of a reply"))
        return reply

    async def closed_loop(self, bodies: Sequence[Body], together: int, advance: Callable[[], None]) -> Pass:
        """All bodies, `together` of them under way at any time while there are so many left."""
        replies, left, begun = [Reply()] * len(bodies), iter(enumerate(bodies)), time.perf_counter()

        async def work() -> None:
            for place, body in left:
                replies[place] = await self.complete(body)
                advance()

        async with asyncio.TaskGroup() as group:
            for _ in range(together):
                group.create_task(work())
        return Pass(replies, time.perf_counter() - begun)


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[Client]:
    """A client of an address; a token is taken from the daemon's own variable."""
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else None
    try:
        async with aiohttp.ClientSession(
            address,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=SECONDS),
            connector=aiohttp.TCPConnector(limit=0),
            read_bufsize=1 << 22,  # the last event holds a whole account
        ) as session:
            yield Client(session)
    except* ConfigError as group:
        raise _first(group) from group
    except* ValueError as group:
        raise ConfigError(f"{address} is no address: give one like http://127.0.0.1:8765.") from group


def _first(group: BaseExceptionGroup[ConfigError]) -> ConfigError:
    """The first of many clients' complaints, which are alike."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ConfigError)
    return error


def _take(reply: Reply, name: str, data: Any, seconds: float) -> None:
    if name == "error":
        raise ConfigError(f"The daemon failed on a request: {data['message']}")
    if name == "text":
        reply.first = seconds if reply.first is None else reply.first
        reply.text += data["text"]
    elif name == "round":
        reply.rounds.append(data["accepted_text"] + data["target_text"])
    elif name == "done":
        reply.done = data
