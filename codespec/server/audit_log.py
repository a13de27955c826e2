"""The audit log: one JSON line for each request, with names and counts, never a text, a path or a document's name.

Anything that a client writes freely stays out: the route is the daemon's own pattern, the language one that it knows.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from codespec_grammars import find_language

from codespec.errors import ConfigError
from codespec.server.accounts import Account
from codespec.server.handles import RequestHandle
from codespec.server.logs import log
from codespec.server.wire import route_of

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclass(slots=True)
class Call:
    """One HTTP request as the accounts and the audit log see it."""

    name: str = ""  # of its key; "" before the guard knows it, or if the daemon has no keys
    account: Account | None = None
    is_owner: bool = False
    handles: list[RequestHandle] = field(default_factory=list)

    @property
    def own_key(self) -> str:
        """The name of its key, whose holder sees nothing about others; "" for the owner and without keys."""
        return "" if self.account is None or self.is_owner else self.name


CALL: web.RequestKey[Call] = web.RequestKey("call", Call)


class AuditLog:
    """The log's file, mode 0600. Raises ConfigError if it can't be opened.

    A line that can't be written is counted; `fault` says so, and the next line that can be written has the count.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.fault = ""
        self.lost = 0  # lines since the last one that was written
        try:
            self._number = _open(file)
        except OSError as error:
            raise ConfigError(f"The audit log {file} can't be opened ({_why(error)})", "choose another file") from error

    def write(self, facts: dict[str, Any]) -> None:
        """Append a line. Never raises OSError."""
        facts = {**facts, "lost": self.lost} if self.lost else facts
        data = b"\n" * bool(self.lost) + json.dumps(facts, separators=(",", ":")).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._number, data) :]
        except OSError as error:
            if not self.fault:
                log.warning("the audit log %s can't be written (%s): requests go on", self.file, _why(error))
            self.lost += 1
            self.fault = (
                f"The audit log can't be written ({_why(error)}; {self.lost} lines lost): make room on its disk."
            )
            return
        self.lost, self.fault = 0, ""

    def reopen(self) -> None:
        """Open the file anew, after the system has moved it away. If that fails, keep the old one and say so."""
        try:
            fresh = _open(self.file)
        except OSError as error:
            self.fault = f"The audit log can't be opened anew ({_why(error)}): make its folder writable."
            log.warning("%s", self.fault)
            return
        self.close()
        self._number, self.fault = fresh, ""

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            os.close(self._number)


def audited(audit_log: AuditLog | None, unlogged: Iterable[str]) -> Middleware:
    """Return the outermost middleware, which logs each request except for those of the routes `unlogged`."""
    routes = frozenset(unlogged)

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        call, began, status = Call(), time.perf_counter(), 499
        request[CALL] = call
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            if audit_log is not None and route_of(request) not in routes:
                audit_log.write(line_of(request, call, status, (time.perf_counter() - began) * 1000))

    return note


def line_of(request: web.Request, call: Call, status: int, ms: float) -> dict[str, Any]:
    """Return the facts of a request that is over. `prompt_tokens` is 0 if no text was finished."""
    languages = {find_language(one.request.language, one.request.path) or "unknown" for one in call.handles}
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "key": call.name,
        "method": request.method if request.method in ("GET", "POST") else "other",
        "route": route_of(request),
        "language": next(iter(languages)) if len(languages) == 1 else "",
        "bytes": request.content_length or 0,
        "prompt_tokens": sum(one.prompt_tokens for one in call.handles),
        "tokens": sum(one.num_tokens for one in call.handles),
        "ms": round(ms, 1),
        "status": status,
        "outcome": _outcome(call, status),
    }


def _outcome(call: Call, status: int) -> str:
    """Return ok, refused, failed, disconnected, superseded or deadline."""
    if status >= 400:
        return "disconnected" if status == 499 else "failed" if status >= 500 else "refused"
    if any(one.error is not None for one in call.handles):
        return "failed"  # after the stream began
    reasons = {completion.finish_reason for one in call.handles for completion in one.finished}
    if "cancelled" in reasons:
        return "superseded"
    return "deadline" if "deadline" in reasons else "ok"


def _open(file: Path) -> int:
    number = os.open(file, _FLAGS, 0o600)
    if stat.S_ISREG(os.fstat(number).st_mode):
        return number
    os.close(number)
    raise OSError(0, "it is not a regular file")


def _why(error: OSError) -> str:
    return error.strerror or type(error).__name__
