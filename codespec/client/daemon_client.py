"""The daemon's HTTP client: completions, edits, lookup files, health checks and identification of the peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from codespec.client.connections import EventReader, HttpReply, NotHttp, ProvenConnections, as_object
from codespec.errors import Absent, ConfigError, DaemonError, Fault, Unproven, quoted

HEALTH_TIMEOUT_S = 2.0  # time limit of a health check
MAX_RETRY_AFTER_S = 86_400.0  # seconds; a daily limit can take a day to reset
COMPLETE, EDIT = "/v1/codespec/complete", "/v1/codespec/edit"
FILES, STATS = "/v1/codespec/files", "/v1/codespec/stats"
RawEvent = tuple[str, dict[str, Any]]
Who = Literal["nobody", "daemon", "locked", "stranger", "silent"]


@dataclass(frozen=True, slots=True)
class Health:
    """The result of a health check. The fields from `version` on describe a ready daemon.

    A `silent` daemon listens but does not answer in time. `absent` means that no program listens. A `foreign` program
    is not the user's daemon, or is a daemon that can't serve.
    """

    state: Literal["ready", "starting", "silent", "absent", "foreign"]
    message: str = ""
    fault: Fault | None = None  # why the program is foreign, if known
    version: str = ""
    target: str = ""
    drafter: str = ""
    model: str = ""  # the value of the setting `model`
    offer: Mapping[str, Any] | None = None  # a better model for this machine
    names: tuple[str, ...] = ()  # all values of the setting `model` that select the same model
    warning: str = ""  # a sentence about a persistent fault
    idle: bool = False  # whether the models are freed until the next request


@dataclass(frozen=True, slots=True)
class Found:
    """The program that listens at an address.

    `who` is `daemon` for the user's daemon, `locked` for a daemon with a different token, `stranger` for an HTTP server
    that can't prove its identity, `silent` for a program that does not speak HTTP, and `nobody` if nothing listens.
    """

    who: Who
    daemon: Mapping[str, Any] = field(default_factory=dict)  # the object `daemon` in `stats`
    stats: Mapping[str, Any] = field(default_factory=dict)  # the reply to a request for statistics


class DaemonClient:
    def __init__(self, connections: ProvenConnections) -> None:
        self.url = connections.url
        self._connections = connections

    async def events(
        self, body: Mapping[str, Any], session: str = "", path: str = COMPLETE
    ) -> AsyncGenerator[RawEvent, None]:
        """Yield the events of a completion or, with the path EDIT, of edits as (name, value). Raises DaemonError.

        Closing the generator early cancels the request.
        """
        async with self._accepted("POST", path, body, session) as reply:
            reader = EventReader()
            async for piece in reply.pieces():
                for name, data in reader.feed(piece):
                    value = as_object(data)
                    if name == "error":
                        message = str(value.get("message", "The daemon failed on this request."))
                        raise DaemonError(quoted(message), status=500)
                    yield name, value

    async def send_files(self, body: Mapping[str, Any], session: str = "") -> None:
        async with self._accepted("POST", FILES, body, session) as reply:
            await reply.json_object()

    async def report(self, path: str) -> dict[str, Any]:
        async with self._accepted("GET", path) as reply:
            return await reply.json_object()

    async def health(self) -> Health:
        """Check the daemon's health. Errors are reported in the result, not raised."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                status, report = await self._look("/health")
        except TimeoutError:
            return Health("silent", f"no answer within {HEALTH_TIMEOUT_S:.0f} s")
        except (Absent, OSError):  # refused, or closed by a daemon that was killed
            return Health("absent")
        except (DaemonError, ConfigError) as error:
            return Health("foreign", str(error), fault=error.fault)
        except NotHttp as error:
            return Health("foreign", f"no answer, because {error}")
        return read_health(status, report)

    async def look(self) -> Found:
        """Identify the program at the daemon's address. Raises ConfigError if the user's secret can't be read."""
        try:
            status, report = await self._look(STATS)
        except Absent:
            return Found("nobody")
        except Unproven as error:
            return Found("locked" if error.locked else "stranger")
        except DaemonError:
            return Found("stranger")
        except (OSError, NotHttp):
            return Found("silent")
        daemon = report.get("daemon")
        if status == 200 and isinstance(daemon, dict) and {"version", "state"} <= daemon.keys():
            return Found("daemon", daemon, report)
        return Found("locked" if status == 401 and of_error(report, "field") == "Authorization" else "stranger")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._connections.close()
        await asyncio.sleep(0)  # until the event loop has closed the sockets

    async def _look(self, path: str) -> tuple[int, dict[str, Any]]:
        async with self._connections.request("GET", path) as reply:
            return reply.status, await reply.json_object()

    @asynccontextmanager
    async def _accepted(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, session: str = ""
    ) -> AsyncIterator[HttpReply]:
        """Send a request and yield its reply. Raises DaemonError if the status is not 200."""
        try:
            async with self._connections.request(method, path, body, session) as reply:
                if reply.status != 200:
                    raise await _refusal(reply)
                yield reply
        except ConfigError as error:
            raise DaemonError(error.fault) from error
        except OSError as error:
            name = type(error).__name__
            raise Absent(f"The daemon closed the connection ({name})", "see the daemon's log") from error
        except NotHttp as error:
            fix = self._connections.fix
            raise DaemonError(f"The program at {self.url} is not a codespec daemon ({error})", fix) from error


async def _refusal(reply: HttpReply) -> DaemonError:
    report = await reply.json_object()
    message = of_error(report, "message")
    fault = quoted(message) if message else Fault("", f"The daemon returned HTTP {reply.status}", "see its log")
    wait = reply.headers.get("retry-after", "")
    known = wait.isascii() and wait.isdigit() and reply.status in (429, 503)
    retry_after = min(float(wait), MAX_RETRY_AFTER_S) if known else None
    if reply.status == 400:
        fault = replace(fault, field=of_error(report, "field"))
    return DaemonError(fault, retry_after=retry_after, status=reply.status)


def read_health(status: int, report: dict[str, Any]) -> Health:
    """Convert a daemon's reply at /health to a `Health` object."""
    if status == 200 and report.get("status") == "ok":
        texts = {name: str(report.get(name, "")) for name in ("version", "target", "drafter", "model", "warning")}
        offer, names = report.get("offer"), report.get("names")
        return Health(
            "ready",
            **texts,
            fault=None,
            offer=offer if isinstance(offer, dict) else None,
            names=tuple(str(name) for name in names) if isinstance(names, list) else (),
            idle=report.get("idle") is True,
        )
    if status == 200 and report.get("status") == "alive":
        return Health("foreign", "Authorization lacks the daemon's token: send it as a Bearer token.")
    message, state = (of_error(report, name) for name in ("message", "state"))
    if status == 503 and state in ("starting", "stopping"):
        return Health("starting", message)
    return Health(
        "foreign", message or f"status {status}", fault=quoted(message) if status == 503 and message else None
    )


def of_error(report: Mapping[str, Any], name: str) -> str:
    error = report.get("error")
    return str(error.get(name, "")) if isinstance(error, dict) else ""
