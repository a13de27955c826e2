"""The HTTP client of the daemon: one event stream for each request, and health checks.

It starts no daemon. The `connections` module verifies the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from codespec.bounded_json import parse_json

if TYPE_CHECKING:
    import aiohttp

    from codespec_lsp.connections import Connections

MOST_LINE = 1 << 20
CONNECT_SECONDS = 2.0
OPTIONAL = ("draft",)  # optional fields that a daemon of an earlier version rejects


@dataclass(frozen=True, slots=True)
class Health:
    """The daemon's state and report.

    The state is `ready`, `starting`, `silent` (it listens but does not answer in time), `absent` (nothing listens), or
    `foreign` (not the user's own daemon, or one that can't serve). If ready, the other fields are the version, the
    names of the models, the value of its setting `model`, a better model that it offers, all names of its model, and a
    warning sentence about what it can't write. If foreign, `error` is a whole sentence or "".
    """

    state: Literal["ready", "starting", "silent", "absent", "foreign"]
    message: str = ""
    error: str = ""
    version: str = ""
    target: str = ""
    drafter: str = ""
    model: str = ""
    offer: Mapping[str, Any] | None = None
    names: tuple[str, ...] = ()
    warning: str = ""


class DaemonError(Exception):
    """Raised if the daemon can't serve a request.

    `again` is the number of seconds to wait before a retry, or None if a retry is useless. `field` is the name of the
    rejected request field, or "".
    """

    def __init__(self, message: str, again: float | None = None, field: str = "") -> None:
        super().__init__(message)
        self.again = again
        self.field = field


class Absent(DaemonError):
    """Raised if nothing listens, or if the daemon died in the middle of a stream."""


class DaemonClient:
    """The client of one daemon. aiohttp is imported at the first request."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url
        self._token = token
        self._connections: Connections | None = None
        self._unknown: set[str] = set()  # fields of OPTIONAL that the daemon, an older version, rejected

    async def events(self, body: Mapping[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield the events of one completion as (name, value). Raises DaemonError.

        Leaving early closes the connection, which stops the daemon's work. If the daemon rejects a field of OPTIONAL,
        the request is repeated without it, and later requests omit it.
        """
        while True:
            try:
                async with contextlib.aclosing(self._events(body)) as events:
                    async for event in events:
                        yield event
                return
            except DaemonError as error:
                if error.field not in OPTIONAL or error.field not in body or error.field in self._unknown:
                    raise
                self._unknown.add(error.field)

    async def _events(self, body: Mapping[str, Any]) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Yield the events of one request, sent without the rejected fields."""
        import aiohttp

        known = {name: value for name, value in body.items() if name not in self._unknown}
        try:
            async with self._open().request("POST", "/v1/codespec/complete", known) as reply:
                if reply.status != 200:
                    raise await _refusal(reply)
                async for event in _read_events(reply):
                    yield event
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
            self._unknown.clear()  # the next daemon may be a newer version
            raise Absent(f"The daemon at {self.url} does not answer ({type(error).__name__}).") from error
        except aiohttp.ClientError as error:
            what = f"What answers at {self.url} is no codespec daemon ({type(error).__name__})"
            raise DaemonError(f"{what}: set codespec.url.") from error

    async def send_files(self, body: Mapping[str, Any]) -> None:
        """Send the files that drafts in a document may copy from. Raises DaemonError."""
        import aiohttp

        try:
            async with self._open().request("POST", "/v1/codespec/files", body) as answer:
                if answer.status != 200:
                    raise await _refusal(answer)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
            raise Absent(f"The daemon at {self.url} does not answer ({type(error).__name__}).") from error
        except aiohttp.ClientError as error:
            raise DaemonError(f"What answers at {self.url} is no codespec daemon: set codespec.url.") from error

    async def health(self) -> Health:
        """Check the daemon's health. Never raises DaemonError."""
        import aiohttp

        try:
            async with asyncio.timeout(CONNECT_SECONDS), self._open().request("GET", "/health") as reply:
                report = _as_object(await reply.content.read(MOST_LINE))
        except TimeoutError:
            return Health("silent", f"no answer within {CONNECT_SECONDS:.0f} s")
        except Absent:
            return Health("absent")
        except DaemonError as error:
            return Health("foreign", str(error), error=str(error))
        except aiohttp.ClientError as error:
            if isinstance(error, aiohttp.ClientConnectionError):  # refused, or closed by a daemon that was killed
                return Health("absent")
            return Health("foreign", f"no answer ({type(error).__name__})")
        return read_health(reply.status, report)

    async def close(self) -> None:
        """Close all connections."""
        if self._connections is not None:
            await self._connections.close()
            self._connections = None

    def _open(self) -> Connections:
        from codespec_lsp.connections import Connections

        if self._connections is None:
            self._connections = Connections(self.url, self._token, CONNECT_SECONDS)
        return self._connections


async def _read_events(reply: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield server-sent events until the stream ends. Raises DaemonError for an error event."""
    name = ""
    async for line in reply.content:
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text.startswith("event:"):
            name = text[6:].strip()
        elif text.startswith("data:"):
            value = _as_object(text[5:].encode())
            if name == "error":
                raise DaemonError(str(value.get("message", "The daemon failed on this request.")))
            yield name, value
            name = ""


async def _refusal(reply: aiohttp.ClientResponse) -> DaemonError:
    """Return the error for a reply whose status is not 200."""
    report = _as_object(await reply.content.read(MOST_LINE))
    message = _of_error(report, "message") or f"The daemon answered {reply.status}."
    wait = reply.headers.get("Retry-After", "")
    again = float(wait) if wait.isdigit() and reply.status in (429, 503) else None
    return DaemonError(message, again, _of_error(report, "field") if reply.status == 400 else "")


def read_health(status: int, report: dict[str, Any]) -> Health:
    """Convert a reply of /health to a `Health`."""
    if status == 200 and report.get("status") == "ok":
        texts = {name: str(report.get(name, "")) for name in ("version", "target", "drafter", "model", "warning")}
        offer, names = report.get("offer"), report.get("names")
        return Health(
            "ready",
            **texts,
            offer=offer if isinstance(offer, dict) else None,
            names=tuple(str(name) for name in names) if isinstance(names, list) else (),
        )
    message, state = (_of_error(report, name) for name in ("message", "state"))
    if status == 503 and state in ("starting", "stopping"):
        return Health("starting", message)
    return Health("foreign", message or f"status {status}", error=message if status == 503 else "")


def _of_error(report: dict[str, Any], name: str) -> str:
    """Return a field of the reported error as text, or ""."""
    error = report.get("error")
    return str(error.get(name, "")) if isinstance(error, dict) else ""


def _as_object(data: bytes) -> dict[str, Any]:
    try:
        value = parse_json(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
