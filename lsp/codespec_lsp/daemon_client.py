"""The daemon over HTTP: one stream of events for each request, and its health. Knows what the daemon's errors mean;
starts nothing, and leaves to `connections` who is at the other end.
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
OPTIONAL = ("draft",)  # fields that a daemon of an earlier version refuses, and that a request can do without


@dataclass(frozen=True, slots=True)
class Health:
    """How the daemon is, and what it reported. `ready`, `starting`, `silent` (somebody listens, but does not answer in
    time), `absent` (nobody listens), or `foreign` (not the user's own daemon, or one that can't serve). Where it is
    ready: its version, its models' names, the name in its setting `model`, a better model that it offers, all names
    that mean the model it has, and what it can't write, in one sentence. Where it is foreign, `error` is a whole
    sentence if there is one."""

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
    """The daemon can't serve this now. `again` is the seconds to wait before another try; None where that is no use.
    `field` is the request's field that it does not take, if it named one."""

    def __init__(self, message: str, again: float | None = None, field: str = "") -> None:
        super().__init__(message)
        self.again = again
        self.field = field


class Absent(DaemonError):
    """Nobody listens there, or the daemon died in the middle of a stream."""


class DaemonClient:
    """The client of one daemon; aiohttp is loaded with the first request."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url
        self._token = token
        self._connections: Connections | None = None
        self._unknown: set[str] = set()  # of OPTIONAL: fields that the daemon there, an older one, does not know

    async def events(self, body: Mapping[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The events of one completion, each with its name. Leaving early closes the connection, which is what stops
        the work. A daemon that does not know one of OPTIONAL is asked without it from then on. Raises DaemonError."""
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
        """The events of one request, without fields that are not known there."""
        import aiohttp

        known = {name: value for name, value in body.items() if name not in self._unknown}
        try:
            async with self._open().request("POST", "/v1/codespec/complete", known) as reply:
                if reply.status != 200:
                    raise await _refusal(reply)
                async for event in _read_events(reply):
                    yield event
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
            self._unknown.clear()  # the next daemon may be a newer one
            raise Absent(f"The daemon at {self.url} does not answer ({type(error).__name__}).") from error
        except aiohttp.ClientError as error:
            what = f"What answers at {self.url} is no codespec daemon ({type(error).__name__})"
            raise DaemonError(f"{what}: set codespec.url.") from error

    async def send_files(self, body: Mapping[str, Any]) -> None:
        """Sends the files that completions of a document may copy from. Raises DaemonError."""
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
        """Whether somebody is there, and who."""
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
            if isinstance(error, aiohttp.ClientConnectionError):  # refused, or cut: a daemon that is killed does that
                return Health("absent")
            return Health("foreign", f"no answer ({type(error).__name__})")
        return read_health(reply.status, report)

    async def close(self) -> None:
        """Ends all connections."""
        if self._connections is not None:
            await self._connections.close()
            self._connections = None

    def _open(self) -> Connections:
        from codespec_lsp.connections import Connections

        if self._connections is None:
            self._connections = Connections(self.url, self._token, CONNECT_SECONDS)
        return self._connections


async def _read_events(reply: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Server-sent events, until the stream ends; an error event is raised."""
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
    """The error that a status other than 200 means."""
    report = _as_object(await reply.content.read(MOST_LINE))
    message = _of_error(report, "message") or f"The daemon answered {reply.status}."
    wait = reply.headers.get("Retry-After", "")
    again = float(wait) if wait.isdigit() and reply.status in (429, 503) else None
    return DaemonError(message, again, _of_error(report, "field") if reply.status == 400 else "")


def read_health(status: int, report: dict[str, Any]) -> Health:
    """What a reply of /health says of who answered."""
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
    """A text of a reported error; "" where there is none."""
    error = report.get("error")
    return str(error.get(name, "")) if isinstance(error, dict) else ""


def _as_object(data: bytes) -> dict[str, Any]:
    try:
        value = parse_json(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
