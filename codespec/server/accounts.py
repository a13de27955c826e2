"""The usage of the daemon and of each key, and reloading of the keys file. Counts start at zero with the daemon."""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, MutableSequence, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NoReturn

from aiohttp import web

from codespec.client.proof import hash_of_key, key_id
from codespec.engine.queue import Priority
from codespec.errors import CodespecError, ConfigError, RequestError, ServeError
from codespec.server.dispatcher import RequestHandle
from codespec.server.keys_file import Key, read_keys
from codespec.server.logs import log

OWNER = "owner"  # the account of the daemon's token
WATCH_SECONDS = 1.0
# A keystroke's completion is useful within a few hundred milliseconds, so the bounds are densest there.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)


class Histogram:
    """Counts of values by upper bound, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value. Bounds are inclusive."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Return pairs of bound and cumulative count, in Prometheus' format. The last bound is +Inf."""
        ends = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(ends, accumulate(self.counts), strict=True))


class RequestMetrics:
    """Totals over all requests since the daemon started.

    `requests` counts by priority, `completions` counts choices by finish reason, `cancelled` counts requests by the
    cause of cancellation, `failed` by the party at fault, and `refused` by reason. Times (seconds) cover only completed
    requests for text.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.completions: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter(superseded=0, disconnected=0, deadline=0)
        self.failed: Counter[str] = Counter(request=0, engine=0, stopping=0)
        self.refused: Counter[str] = Counter(queue_full=0, not_ready=0)
        self.queue = Histogram(SECONDS)
        self.to_first_text = Histogram(SECONDS)
        self.to_end = Histogram(SECONDS)

    def end(self, handle: RequestHandle) -> None:
        """Add a finished request."""
        self.requests[handle.priority.name.lower()] += 1
        reasons = [completion.finish_reason for completion in handle.finished]
        self.completions.update(reasons)
        if handle.error is not None:
            self.failed[_fault(handle.error)] += 1
        elif handle.ended is None:
            self.cancelled["disconnected"] += 1
        elif "cancelled" in reasons:
            self.cancelled["superseded"] += 1
        else:
            self.cancelled["deadline"] += "deadline" in reasons
            if handle.priority == Priority.INTERACTIVE:
                self._time(handle, handle.ended - handle.arrived)

    def _time(self, handle: RequestHandle, total: float) -> None:
        self.to_end.observe(total)
        queued = [completion.stats.queue_ms / 1000 for completion in handle.finished if completion.stats.rounds]
        self.queue.observe(min(queued, default=total))
        if handle.first_text is not None:
            self.to_first_text.observe(handle.first_text - handle.arrived)


def _fault(error: CodespecError) -> str:
    if isinstance(error, RequestError):
        return "request"
    if not isinstance(error, ServeError):
        return "engine"
    return error.party or ("stopping" if error.status == 503 else "engine")


class Account:
    """The usage of one key, or of the owner, since the daemon started."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.open: set[RequestHandle] = set()
        self.requests = 0  # POST requests
        self.refused = 0  # completions that found the queue full
        self.prompt_tokens = 0
        self.tokens = 0

    @property
    def name(self) -> str:
        """The key's name."""
        return self.key.name

    def end(self, handle: RequestHandle) -> None:
        """Count a completion that has ended, or has lost its client."""
        self.open.discard(handle)
        self.prompt_tokens += handle.prompt_tokens
        self.tokens += handle.num_tokens


ACCOUNT: web.RequestKey[Account] = web.RequestKey("account", Account)


def own_key(request: web.Request) -> str:
    """Return the name of a request's key, for replies that must not reveal others; "" for the owner or without keys."""
    account: Account | None = request.get(ACCOUNT)
    return "" if account is None or account.name == OWNER else account.name


class Keyring:
    """The accounts of the keys in a file. Raises ConfigError if the file can't be used.

    `notes` gets a sentence for each setting that has no effect. If the file changes and can't be used any more, the
    previous keys stay valid and `fault` is set.
    """

    def __init__(self, file: Path, notes: MutableSequence[str] | None = None) -> None:
        self.file = file
        self.owner = Account(Key(OWNER, ""))
        self.fault = ""
        self._version: tuple[int, ...] = self._look()
        self._by_hash: dict[str, Account] = {}
        self._by_id: dict[str, str] = {}
        self._take(read_keys(file, notes))

    @property
    def accounts(self) -> list[Account]:
        """The owner's account and those of the current keys."""
        return [self.owner, *self._by_hash.values()]

    def find(self, key: str) -> Account | None:
        """Return the account of a key, or None if it is not in the file."""
        return self._by_hash.get(hash_of_key(key)) if key else None

    def hash_by_id(self, key_id: str) -> str | None:
        """Return the hash of the key with the id that a client sent for a proof, or None."""
        return self._by_id.get(key_id)

    def refresh(self) -> list[Account]:
        """Read the file again if it has changed; return the accounts of removed keys."""
        version = self._look()
        if version == self._version:
            return []
        self._version = version
        try:
            keys = read_keys(self.file)
        except ConfigError as error:
            self.fault = f"{error.fault.clause}; the previous keys stay valid."
            log.warning("%s", self.fault)
            return []
        self.fault = ""
        return self._take(keys)

    def _take(self, keys: tuple[Key, ...]) -> list[Account]:
        """Replace the keys. A key that was there before keeps its account, and a new key gets a new one."""
        former, self._by_hash = self._by_hash, {}
        for key in keys:
            account = former.pop(key.sha256, None) or Account(key)
            account.key = key
            self._by_hash[key.sha256] = account
        self._by_id = {key_id(key.sha256): key.sha256 for key in keys}
        return list(former.values())

    def _look(self) -> tuple[int, ...]:
        """Return the file's times, size and inode number, which change with its content."""
        try:
            state = os.stat(self.file)
        except (OSError, ValueError):
            return ()
        return state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino


async def watch(keyring: Keyring, woken: asyncio.Event, end: Callable[[Account], None]) -> NoReturn:
    """Read the keys file when it changes, checking every WATCH_SECONDS and when `woken` is set.

    Call `end` for each revoked key.
    """
    while True:
        try:
            async with asyncio.timeout(WATCH_SECONDS):
                await woken.wait()
        except TimeoutError:
            pass
        woken.clear()
        for account in keyring.refresh():
            end(account)
