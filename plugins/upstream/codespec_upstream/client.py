"""An HTTP client for OpenAI-compatible servers: the list of models, whole completions and streams of chunks.

Every failure becomes an UpstreamError of one sentence. The client verifies TLS certificates, refuses redirects and
compressed bodies, and ignores the proxy variables of the environment. Every wait has a time limit.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import aiohttp

from codespec.api.limits import is_host
from codespec.client.connections import SESSION_HEADER, EventReader, NotHttp
from codespec.errors import ConfigError, Fault, ServeError
from codespec.files import parse_json

CONNECT_SECONDS = 5.0
MAX_BODY = 1 << 20  # bytes of a reply that is not streamed
MAX_CONNECTIONS = 128
MAX_EVENT = 1 << 18  # bytes
MAX_VALUES = 1 << 14  # JSON values in one event
MAX_SECONDS = 600.0  # duration of one stream
MAX_RETRY_AFTER = 60  # seconds; a longer Retry-After is reduced
MAX_QUOTED = 200  # characters of a server's message that an error quotes
EVENTS, JSON = "text/event-stream", "application/json"
MAX_COUNT = 1 << 31  # tokens
MAX_MESSAGE = 1000  # characters of a server's message that are read
_TOO_LONG = re.compile(
    r"maximum context length is (\d{1,9}) tokens.*?"
    r"(?:\((\d{1,9}) in (?:your|the) |has (\d{1,9}) input tokens"
    r"|contains (?P<bound>at least )?(\d{1,9}) |resulted in (\d{1,9}) )",
    re.DOTALL,
)
CHECK_SERVER = "check that it is an OpenAI-compatible server"


def base_of(url: str) -> str:
    """Return the base URL of a server's API, which ends in /v1. Raises ConfigError if the URL is not usable."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and is_host(parts.hostname or "") and (parts.port or 1) > 0
        usable = usable and not (parts.query or parts.fragment or "@" in parts.netloc)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError("upstream can't be used", "write http://HOST:PORT or https://HOST, and the key into a file")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else path + '/v1'}"


class Excess(NamedTuple):
    """The number of tokens in a prompt that was too long, and in the model's context.

    If `is_bound`, the server (vLLM) stopped counting at a limit, so the prompt has at least `prompt` tokens.
    """

    prompt: int
    context: int
    is_bound: bool = False

    @classmethod
    def read(cls, report: Mapping[str, Any]) -> Excess | None:
        """Parse the error of llama-server, OpenAI or vLLM about a prompt that is too long, else return None."""
        error = report.get("error", report)
        if not isinstance(error, dict):
            return None
        prompt, context, is_bound = error.get("n_prompt_tokens"), error.get("n_ctx"), False
        if type(prompt) is not int or type(context) is not int:
            message = _TOO_LONG.search(str(error.get("message", ""))[:MAX_MESSAGE])
            if message is None:
                return None
            is_bound = message["bound"] is not None
            prompt, context = int(message[message.lastindex or 0]), int(message[1])
        return cls(prompt, context, is_bound) if 0 < context < MAX_COUNT and 0 < prompt < MAX_COUNT else None


class UpstreamError(ServeError):
    """A failure of the upstream server.

    `repeatable`: the daemon can repeat the request, because the server did not get or answer the request. `unwell`: the
    server is at fault, so the next request would fail too. `excess`: the prompt was longer than the model's context.
    """

    party = "upstream"

    def __init__(
        self,
        problem: Fault | str,
        status: int = 502,
        retry_after: int = 0,
        *,
        repeatable: bool = False,
        unwell: bool = True,
    ) -> None:
        super().__init__(problem, status, retry_after)
        self.repeatable = repeatable
        self.unwell = unwell
        self.excess: Excess | None = None

    @property
    def reason(self) -> str:
        """The problem without a capital letter, for use inside a sentence."""
        return self.fault.problem[:1].lower() + self.fault.problem[1:]


class UpstreamClient:
    """A client of one server. `patience` is the maximum wait in seconds for a reply, and for each event of a stream."""

    def __init__(self, url: str, key: str = "", patience: float = 30.0) -> None:
        self.base = base_of(url)
        parts = urlsplit(self.base)
        self.host, self.is_plain = parts.hostname or "", parts.scheme == "http"
        self.patience = patience
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "codespec"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=30),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def models(self) -> list[dict[str, Any]]:
        """Return the models that /v1/models lists, at least one. Raises UpstreamError."""
        reply = await self._whole("GET", "/models")
        data = reply.get("data")
        entries = data if isinstance(data, list) else []
        listed = [entry for entry in entries if isinstance(entry, dict) and entry.get("id")]
        if not listed:
            raise self._error("lists no model at /v1/models", "load one there")
        return listed

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Request a completion without streaming and return the reply. Raises UpstreamError."""
        return await self._whole("POST", "/completions", body)

    async def chunks(self, body: Mapping[str, Any], session: str = "") -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a streamed completion, and {} for `[DONE]`. Closing the generator aborts the request."""
        async with self._reply("POST", "/completions", body, session) as response:
            self._demand_type(response, EVENTS)
            reader, latest = EventReader(MAX_EVENT), time.monotonic() + MAX_SECONDS
            while events := await self._next(response, reader):
                for _, data in events:
                    if data.strip() == b"[DONE]":
                        yield {}
                        return
                    yield self._read_chunk(data)
                if time.monotonic() > latest:
                    raise self._error(f"took longer than {MAX_SECONDS:g} s", "look at its log", status=504)
            if reader.is_half:
                raise self._error("broke off in the middle of an event", "look at its log")

    async def _next(self, response: aiohttp.ClientResponse, reader: EventReader) -> list[tuple[str, bytes]]:
        """Read until at least one event is complete, and return the events, or an empty list at the end of the body."""
        events: list[tuple[str, bytes]] = []
        try:
            async with asyncio.timeout(self.patience):
                while not events and (piece := await response.content.readany()):
                    events = reader.feed(piece)
        except TimeoutError as error:
            raise self._late() from error
        except NotHttp as error:
            raise self._error(f"sent an event longer than {MAX_EVENT >> 10} KiB", CHECK_SERVER) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise self._error("broke off in the middle of its answer", "look at its log") from error
        return events

    def _read_chunk(self, data: bytes) -> dict[str, Any]:
        try:
            chunk = read_object(data)
        except NotAnObject as error:
            raise self._error(str(error), CHECK_SERVER) from error
        if chunk.get("error"):
            raise self._error("failed in the middle of its answer", "look at its log")
        return chunk

    async def _whole(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        async with self._reply(method, path, body) as response:
            self._demand_type(response, JSON)
            try:
                return read_object(await self._body(response))
            except NotAnObject as error:
                raise self._error(str(error), CHECK_SERVER) from error

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        """Return a whole body. Raises UpstreamError if the body is too long or arrives too late."""
        data = bytearray()
        try:
            async with asyncio.timeout(self.patience):
                while piece := await response.content.readany():
                    data += piece
                    if len(data) > MAX_BODY:
                        raise self._error(f"sent more than {MAX_BODY >> 20} MiB", "check the address")
        except TimeoutError as error:
            raise self._late() from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise self._error("broke off in the middle of its answer", "look at its log") from error
        return bytes(data)

    @asynccontextmanager
    async def _reply(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, session: str = ""
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield a reply with status 200. Exiting before the reply's end closes the connection."""
        assert self._session is not None
        headers = {SESSION_HEADER: session} if session else {}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), JSON
        try:
            async with asyncio.timeout(self.patience):
                response = await self._session.request(
                    method, self.base + path, data=data, headers=headers, allow_redirects=False
                )
        except aiohttp.ConnectionTimeoutError as error:
            what = f"can't be reached (no connection within {CONNECT_SECONDS:g} s)"
            raise self._error(what, "start it, or check --upstream", status=504) from error
        except TimeoutError as error:
            raise self._late() from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._unreached(error) from error
        try:
            if response.status != 200:
                raise await self._refusal(response, path)
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise self._error("compresses its replies against the request's headers", "switch that off there")
            yield response
        finally:
            if not response.content.at_eof():
                response.close()
            response.release()

    def _demand_type(self, response: aiohttp.ClientResponse, wanted: str) -> None:
        if response.content_type != wanted:
            raise self._error(f"answered with {response.content_type[:80]} instead of {wanted}", "check the address")

    async def _refusal(self, response: aiohttp.ClientResponse, path: str) -> UpstreamError:
        """Build the error for a reply whose status is not 200."""
        status, wait = response.status, response.headers.get("Retry-After", "")
        seconds = int(min(float(wait), MAX_RETRY_AFTER)) if wait.isascii() and wait.isdigit() else 1
        if 300 <= status < 400:
            return self._error(f"redirects (status {status}), which is refused", "give the address it redirects to")
        if status in (401, 403):
            return self._error(f"refuses the key (status {status})", "check --upstream-token-file")
        if status == 404:
            return self._error(f"answers 404 at /v1{path}", "check --upstream and --upstream-model")
        if status == 429:
            what = "has too many requests (status 429)"
            return self._error(what, "try again in a moment", status=429, wait=seconds, unwell=False)
        if status >= 500:
            repeatable = status in (502, 503, 504)
            return self._error(f"failed (status {status})", "look at its log", repeatable=repeatable)
        report = await self._report(response)
        error = report.get("error", report)
        quoted = error.get("message", "") if isinstance(error, dict) else error
        message = f": {' '.join(str(quoted).split())[:MAX_QUOTED]}" if quoted else ""
        what = f"refuses this request (status {status}{message})"
        refusal = self._error(what, "see what it accepts", status=400 if status in (400, 422) else 502, unwell=False)
        refusal.excess = Excess.read(report)
        return refusal

    async def _report(self, response: aiohttp.ClientResponse) -> dict[str, Any]:
        """Return the JSON object in the body of an error reply, or {} if the body is anything else."""
        try:
            return read_object(await self._body(response))
        except (NotAnObject, UpstreamError):
            return {}

    def _unreached(self, error: Exception) -> UpstreamError:
        if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError):
            return self._error("has a TLS certificate that can't be verified", "replace it, or set SSL_CERT_FILE")
        if isinstance(error, aiohttp.ClientConnectorError):
            why = error.os_error.strerror or type(error.os_error).__name__
            return self._error(f"can't be reached ({why})", "start it, or check --upstream", repeatable=True)
        if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError):
            return self._error("closed the connection before it answered", "look at its log", repeatable=True)
        return self._error(f"does not speak HTTP ({type(error).__name__})", "check --upstream")

    def _late(self) -> UpstreamError:
        return self._error(f"sent nothing for {self.patience:g} s", "look at its log", status=504)

    def _error(
        self, what: str, fix: str, *, status: int = 502, wait: int = 0, repeatable: bool = False, unwell: bool = True
    ) -> UpstreamError:
        fault = Fault("", f"The upstream server {what}", fix)
        return UpstreamError(fault, status, wait, repeatable=repeatable, unwell=unwell)


class NotAnObject(Exception):
    """Raised for data that is not a JSON object. The message is a clause whose subject is the server."""


def read_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises NotAnObject for other data."""
    try:
        value = parse_json(data, MAX_VALUES)
    except UnicodeDecodeError as error:
        raise NotAnObject("sent text that is not UTF-8") from error
    except ValueError as error:
        raise NotAnObject("sent invalid JSON") from error
    if not isinstance(value, dict):
        raise NotAnObject("sent JSON that is not an object")
    return value
