"""One developer of a team: types at one site after another and requests completions as a language server does.

Keys and pauses are those of `bench typing`. After each change the developer waits 50 ms and sends a request over HTTP;
the next key closes its connection. While the keys repeat the text that is shown, nothing is sent. A document's requests
carry its `x-session-id`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from codespec.client.connections import ProvenConnections
from codespec.client.daemon_client import DaemonClient
from codespec.contract.limits import MOST_SIDE
from codespec.errors import Absent, ConfigError, DaemonError
from codespec.token_file import read_token
from codespec_lab.bench.statistics import common
from codespec_lab.bench.typing.typist import BUDGET_MS, DEBOUNCE, keystrokes
from codespec_lab.bench.typing_sites import TypingSite

PATIENCE = 60.0  # seconds without a byte of a reply
IN_TIME = BUDGET_MS / 1000


@dataclass(slots=True)
class Change:
    """One change of a document, and what came of it. Times are in seconds since the change.

    `pause`     until the next change (None: the last one)
    `sent`      whether a request was sent, and not cancelled by the next change before
    `answered`  until the text was complete (None: never)
    `timely`    characters of the text after IN_TIME that are the ones to be typed; `right` of the last text seen
    `refused`   whether the daemon answered with an error
    `opens`     whether its request is the first for its document
    `cached`    share of the prompt's tokens that the daemon had in its cache (None: not known)
    """

    at: float
    pause: float | None = None
    sent: bool = False
    answered: float | None = None
    timely: int = 0
    right: int = 0
    refused: bool = False
    opens: bool = False
    cached: float | None = None

    @property
    def waits(self) -> bool:
        """Return whether the developer pauses long enough to read an answer in time, or a late one."""
        return self.pause is None or self.pause >= IN_TIME


class Sessions(ProvenConnections):
    """Connections whose requests carry a session id."""

    def name_session(self, session: str) -> None:
        """Set the id of the requests to come."""
        self._headers = {**self._headers, "x-session-id": session}


class Developer:
    """Types at `sites` in turn, beginning with one of its own."""

    def __init__(self, number: int, url: str, sites: Sequence[TypingSite]) -> None:
        self._number, self._sites = number, sites
        try:
            self._connections = Sessions(url, read_token(""), "check --url", patience=PATIENCE, most=4)
        except ValueError as error:
            raise ConfigError(f"{url} is no address: give one like http://127.0.0.1:8765.") from error
        self._client = DaemonClient(self._connections)
        self._ghost, self._is_open = "", False
        self.changes: list[Change] = []

    async def type(self, end: float) -> None:
        """Type until `end`, by the clock of `perf_counter`."""
        turn = self._number
        try:
            while time.perf_counter() < end:
                await self._type_at(turn, end)
                turn += 1
        finally:
            await self._client.close()

    async def _type_at(self, turn: int, end: float) -> None:
        site, self._ghost, self._is_open = self._sites[turn % len(self._sites)], "", False
        document = f"{site.name}#{self._number}.{turn}"
        self._connections.name_session(document)
        request: asyncio.Task[None] | None = None
        change: Change | None = None
        try:
            for version, key in enumerate(keystrokes(site.typed, turn)):
                since = change.at if change is not None else time.perf_counter()
                await asyncio.sleep(since + key.wait - time.perf_counter())
                await _stop(request)
                now = time.perf_counter()
                if change is not None:
                    change.pause = now - change.at
                if now >= end:
                    return
                change = Change(now)
                self.changes.append(change)
                along = len(self._ghost) > len(key.text) and self._ghost.startswith(key.text)
                self._ghost = self._ghost[len(key.text) :] if along else ""
                left = site.typed[key.end :]
                if along:
                    change.answered = DEBOUNCE
                    change.timely = change.right = common(self._ghost, left)
                else:
                    body = body_at(site, document, version, key.end)
                    request = asyncio.create_task(self._request(change, body, left))
            await asyncio.sleep(IN_TIME)
        finally:
            await _stop(request)

    async def _request(self, change: Change, body: dict[str, object], left: str) -> None:
        await asyncio.sleep(change.at + DEBOUNCE - time.perf_counter())
        change.sent, change.opens, self._is_open = True, not self._is_open, True
        try:
            async with aclosing(self._client.events(body)) as events:
                async for name, value in events:
                    spent = time.perf_counter() - change.at
                    if name == "text":
                        self._ghost += value["text"]
                        change.right = common(self._ghost, left)
                        change.timely = change.right if spent <= IN_TIME else change.timely
                    elif name == "done":
                        change.answered = spent
                        tokens = value["cached_tokens"] + value["new_tokens"]
                        change.cached = value["cached_tokens"] / tokens if tokens else None
        except Absent:
            raise
        except DaemonError:
            change.refused = True


def body_at(site: TypingSite, document: str, version: int, typed: int) -> dict[str, object]:
    """Return the request after `typed` characters, as an editor sends it."""
    cursor = site.begin + typed
    start = max(0, cursor - MOST_SIDE)
    return {
        "document": document,
        "version": version,
        "path": site.name,
        "prefix": site.text[start:cursor],
        "prefix_offset": start,
        "suffix": site.text[site.end :][:MOST_SIDE],
    }


async def _stop(request: asyncio.Task[None] | None) -> None:
    """Cancel a request that is still open. Raise its error if it failed."""
    if request is not None:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        if not request.cancelled() and (error := request.exception()) is not None:
            raise error
