"""The limits and the usage of each key, and reloading of the keys file.

Counts are kept in memory and start at zero when the daemon starts. Only the current day's tokens survive a restart, in
one small file for each keys file.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from aiohttp import web
from codespec_grammars import find_language

from codespec.errors import ConfigError, ServeError
from codespec.json_store import Kept, digest
from codespec.keys_file import MOST_KEYS, Key, read_keys
from codespec.proof import hash_of_key, key_id
from codespec.server.handles import RequestHandle
from codespec.server.logs import log
from codespec.server.wire import route_of
from codespec.user_folders import state_folder

OWNER = "owner"  # the account of the daemon's token
WATCH_SECONDS = 1.0
SAVE_SECONDS = 5.0
DAY = 86400
Tokens = Mapping[str, int]  # tokens of one day by the hash of a key
REFUSALS = ("requests_per_minute", "tokens_per_day", "at_once", "queue_full")


class Account:
    """The usage and the limits of one key, or the usage of the owner.

    The limit of requests per minute is a token bucket, so a minute's requests may arrive at once. The tokens of a text
    count when it ends, so the last texts of a day can exceed the daily limit by their own length.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.open: set[RequestHandle] = set()
        self.requests = 0
        self.prompt_tokens = 0
        self.tokens = 0
        self.refused = Counter(dict.fromkeys(REFUSALS, 0))
        self._spent = 0.0  # level of the bucket, in requests
        self._counted_at = 0.0
        self._day = 0
        self._tokens_today = 0

    @property
    def name(self) -> str:
        """The key's name."""
        return self.key.name

    def count_request(self, now: float | None = None) -> None:
        """Count a POST request. Raise ServeError (429) beyond the limit."""
        now, most = time.monotonic() if now is None else now, self.key.requests_per_minute
        self._spent = min(most, max(0.0, self._spent - (now - self._counted_at) * most / 60))
        self._counted_at = now
        if most and self._spent + 1 > most:
            self._refuse("requests_per_minute", f"{most} requests a minute", (self._spent + 1 - most) * 60 / most)
        self._spent += 1
        self.requests += 1

    def check(self, today: float | None = None) -> None:
        """Raise ServeError (429) if a limit forbids another completion."""
        today, key = time.time() if today is None else today, self.key
        self._begin_day(today)
        if key.tokens_per_day and self._tokens_today >= key.tokens_per_day:
            self._refuse("tokens_per_day", f"{key.tokens_per_day} tokens a day", DAY - today % DAY)
        if key.at_once and len(self.open) >= key.at_once:
            self._refuse("at_once", f"{key.at_once} completions at once", 1)

    def end(self, handle: RequestHandle, today: float | None = None) -> None:
        """Count a completion that has ended, or has lost its client."""
        self._begin_day(time.time() if today is None else today)
        self.open.discard(handle)
        self.prompt_tokens += handle.prompt_tokens
        self.tokens += handle.num_tokens
        self._tokens_today += handle.num_tokens

    def tokens_on(self, day: int) -> int:
        """Return the tokens written on a day, which must not be in the future. Days count from 1970 in UTC."""
        return self._tokens_today if day == self._day else 0

    def resume(self, day: int, tokens: int) -> None:
        """Restore the tokens that an earlier daemon counted on a day."""
        self._day, self._tokens_today = day, tokens

    def _begin_day(self, now: float) -> None:
        if int(now // DAY) != self._day:
            self._day, self._tokens_today = int(now // DAY), 0

    def _refuse(self, limit: str, what: str, seconds: float) -> NoReturn:
        self.refused[limit] += 1
        wait = max(1, math.ceil(seconds))
        raise ServeError(f"The key {self.name!r} may use {what}: try again in {wait} s.", 429, wait)


@dataclass(slots=True)
class Call:
    """One HTTP request as the accounts and the audit log see it."""

    name: str = ""  # of its key; "" before the guard has run, or if the daemon has no keys
    account: Account | None = None
    handles: list[RequestHandle] = field(default_factory=list)

    @property
    def own_key(self) -> str:
        """The name of its key, for replies that must not reveal other keys; "" for the owner and without keys."""
        return "" if self.account is None or self.name == OWNER else self.name


CALL: web.RequestKey[Call] = web.RequestKey("call", Call)


def line_of(request: web.Request, call: Call, status: int, ms: float) -> dict[str, Any]:
    """Return the audit log's line for a finished request. `prompt_tokens` is 0 if no text was finished."""
    requests = [handle.request for handle in call.handles]
    languages = {find_language(request.language, request.path) or "unknown" for request in requests}
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "key": call.name,
        "method": request.method if request.method in ("GET", "POST") else "other",
        "route": route_of(request),
        "language": next(iter(languages)) if len(languages) == 1 else "",
        "bytes": request.content_length or 0,
        "prompt_tokens": sum(handle.prompt_tokens for handle in call.handles),
        "tokens": sum(handle.num_tokens for handle in call.handles),
        "ms": round(ms, 1),
        "status": status,
        "outcome": _outcome(call, status),
    }


def _outcome(call: Call, status: int) -> str:
    """Return ok, refused, failed, disconnected, superseded or deadline."""
    if status >= 400:
        return "disconnected" if status == 499 else "failed" if status >= 500 else "refused"
    if any(handle.error is not None for handle in call.handles):
        return "failed"  # after the stream began
    reasons = {completion.finish_reason for handle in call.handles for completion in handle.finished}
    if "cancelled" in reasons:
        return "superseded"
    return "deadline" if "deadline" in reasons else "ok"


class Keyring:
    """The accounts of the keys in a file. Raises ConfigError if the file can't be used.

    If the file changes and can't be used any more, the previous keys stay valid and `fault` is set.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.owner = Account(Key(OWNER, ""))
        self.fault = ""
        self._version: tuple[int, ...] = self._look()
        self._by_hash: dict[str, Account] = {}
        self._by_id: dict[str, str] = {}
        self._take(read_keys(file))

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


class DailyCounts:
    """Saves the token counts of a keyring's accounts when they change, at most every SAVE_SECONDS.

    A killed daemon loses the counts since the last save. Daemons that share a keys file, such as replicas, count
    separately, and a new daemon reads the counts that were saved last.
    """

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        again, each = "today's token counts start at zero", "a restart forgets them"
        self._file = Kept(usage_file(keyring.file), "usage by key", parse, spell, again, each)
        self._notes: list[str] = []
        self._saved: tuple[int, Tokens] = (0, {})
        self._next = 0.0

    @property
    def fault(self) -> str:
        """A sentence about the file, or ""."""
        return f"{self._notes[-1][:1].upper()}{self._notes[-1][1:]}." if self._notes else ""

    def load(self) -> None:
        """Restore the number of tokens that each account has used today."""
        day, tokens = self._file.load(self._notes) or (0, {})
        for account in self._keyring.accounts:
            account.resume(day, tokens.get(account.key.sha256, 0))

    def save(self, *, at_once: bool = False) -> None:
        """Write the file if a count has changed, and SAVE_SECONDS have passed since the last save."""
        now = time.monotonic()
        if now < self._next and not at_once:
            return
        self._next = now + SAVE_SECONDS
        day = int(time.time() // DAY)
        counts = {account.key.sha256: account.tokens_on(day) for account in self._keyring.accounts}
        content = (day, {sha256: count for sha256, count in counts.items() if sha256 and count})
        if content != self._saved and (content[1] or self._saved[1]):
            self._saved = content
            self._notes.clear()
            self._file.save(content, self._notes)


def spell(counts: tuple[int, Tokens]) -> Mapping[str, Any]:
    """Return the content of the file."""
    day, tokens = counts
    return {"day": day, "tokens": dict(tokens)}


def parse(values: Mapping[str, Any]) -> tuple[int, Tokens]:
    """Return the counts of a file. Raises ValueError for content that `spell` never returns."""
    day, tokens = values["day"], values["tokens"]
    if type(day) is not int or not isinstance(tokens, dict) or len(tokens) > MOST_KEYS:
        raise ValueError("not a day's counts")
    if not all(type(count) is int and count > 0 for count in tokens.values()):
        raise ValueError("a count is not a positive number")
    return day, tokens


def usage_file(keys: Path) -> Path:
    """Return the file with the usage of a keys file."""
    return state_folder() / f"key-usage-{digest(str(keys.absolute()))}.json"


async def watch(
    keyring: Keyring, woken: asyncio.Event, end: Callable[[Account], None], save: Callable[[], None]
) -> NoReturn:
    """Read the keys file when it changes, checking every WATCH_SECONDS and when `woken` is set.

    Call `end` for each revoked key, and `save` after each check.
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
        save()
