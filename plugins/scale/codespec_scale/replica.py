"""A replica: an ASGI application that runs one daemon and forwards requests to it unchanged.

The daemon (`codespec serve`) listens on a Unix socket in a temporary folder, and checks tokens, bodies and limits as it
does without Ray. If the daemon ends, the replica's process exits. Ray then sends the requests to other replicas and
starts a new replica. On Linux, the daemon ends with its replica, even if the replica is killed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import aiohttp
from yarl import URL

from codespec.api.settings import PREFIX
from codespec.client import proof
from codespec.client.connections import as_object
from codespec.errors import ConfigError
from codespec.user_folders import read_token
from codespec_scale.relay import REPLICA, Message, Receive, Scope, Send, reply_error, to_json

Gather = Callable[[str], Awaitable[Mapping[str, bytes]]]
READY = "codespec: ready"
DRAIN_SECONDS = 30  # until a stopping daemon ends its open requests
END_SECONDS = 40.0  # until a stopping daemon is killed
NOTICE_SECONDS = 5.0  # wait after a lost connection for the daemon's end
METRICS = "/metrics"
# Hop-by-hop headers (RFC 9110, 7.6.1), and headers that each server sets itself.
HOPS = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
NOT_SENT, NOT_RETURNED = HOPS | {b"expect"}, HOPS | {b"date", b"server"}
BODY = {b"content-length", b"transfer-encoding"}
UNASKED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")  # aiohttp adds these by default
# The kernel kills the daemon when the thread that started it ends: PR_SET_PDEATHSIG is 1.
CHILD = """
import signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
from codespec.cli import main
raise SystemExit(main())
"""


class Replica:
    """A daemon and the connection to it.

    `words` are arguments of `codespec serve`. The function `name` returns the replica's name. `gather` maps a client's
    Authorization header to the metrics of all replicas by name. `leave` ends this process.
    """

    here: ClassVar[Replica]  # the replica of this process

    def __init__(
        self,
        words: Sequence[str],
        token_file: str = "",
        name: Callable[[], str] = lambda: "replica",
        leave: Callable[[int], Any] = os._exit,
        gather: Gather | None = None,
    ) -> None:
        self._words, self._token_file = tuple(words), token_file
        self._find_name, self._leave, self._gather = name, leave, gather
        self._stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an HTTP request, or the application's start and end."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and (scope["method"], scope["path"]) == ("POST", proof.PATH):
            await self._prove(scope, receive, send)
        elif scope["type"] == "http":
            await self._pass_on(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._start()
        except ConfigError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        """Start the daemon and wait until it is ready. Raises ConfigError with the daemon's last line of output."""
        token = read_token(self._token_file)
        self._name, self._keys, self._has_token = self._find_name(), proof.own_keys(token), bool(token)
        self._folder = Path(tempfile.mkdtemp(prefix="codespec-replica-"))
        place = str(self._folder / "socket")
        own = ["--host", "127.0.0.1", "--port", "0", "--socket", place, "--drain-seconds", str(DRAIN_SECONDS)]
        own += ["--token-file", self._token_file] if self._token_file else []
        pipe = asyncio.subprocess.PIPE
        self._daemon = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", CHILD, "serve", *self._words, *own),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            env=daemon_environment(os.environ),
        )
        last = await self._copy_output(READY)
        if not last.startswith(READY):
            await self._daemon.wait()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ConfigError(f"The daemon did not start: {last.removeprefix('codespec: ') or 'see its log'}")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(place, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        Replica.here = self
        self._copying = asyncio.create_task(self._copy_output())
        self._watching = asyncio.create_task(self._watch())

    async def _copy_output(self, until: str = "\n") -> str:
        """Copy the daemon's output to the log up to a line that begins with `until`, and return the last line."""
        assert self._daemon.stdout is not None
        last = ""
        while not last.startswith(until) and (line := await self._daemon.stdout.readline()):
            last = line.decode("utf-8", "replace").rstrip("\n")
            print(last, flush=True)
        return last

    async def _watch(self) -> None:
        """End this process if the daemon ends unexpectedly."""
        await self._daemon.wait()
        if not self._stopping:
            self._leave(1)

    async def _stop(self) -> None:
        """Stop the daemon after its open requests."""
        self._stopping = True
        if self._daemon.returncode is None:
            self._daemon.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._daemon.wait(), END_SECONDS)
        except TimeoutError:
            self._daemon.kill()
        await asyncio.gather(self._watching, self._copying)
        await self._session.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream a request to the daemon, and the reply to the client. A disconnect by the client ends both."""
        headers = kept_headers(scope["headers"], NOT_SENT)
        if self._has_token:  # the daemon accepts only local host names, but with a token any name is safe
            headers = [(name, "localhost" if name == "host" else value) for name, value in headers]
        has_body = BODY & {name.lower() for name, _ in scope["headers"]}
        try:
            async with self._session.request(
                scope["method"],
                url_of(scope),
                headers=headers,
                data=body_of(receive) if has_body else None,
                allow_redirects=False,
                skip_auto_headers=UNASKED,
            ) as reply:
                await self._pass_back(scope, reply, send)
        except (aiohttp.ClientError, ConnectionError):
            await asyncio.wait((self._watching,), timeout=NOTICE_SECONDS)  # _watch may end this process
            raise

    async def _pass_back(self, scope: Scope, reply: aiohttp.ClientResponse, send: Send) -> None:
        kept = kept_headers(reply.raw_headers, NOT_RETURNED)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept]
        headers.append((REPLICA, self._name.encode("latin-1", "replace")))
        if scope["path"] == METRICS:
            pages = {self._name: labelled(await reply.read(), self._name)}
            if reply.status == 200 and self._gather is not None:
                pages |= await self._gather(dict(scope["headers"]).get(b"authorization", b"").decode("latin-1"))
            page = merged(pages.values())
            headers = [(name, value) for name, value in headers if name != b"content-length"]
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await send(_piece(page))
        else:
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            async for piece in reply.content.iter_any():
                await send(_piece(piece))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def metrics(self, authorization: str) -> tuple[str, bytes]:
        """Return the replica's name, and the metrics that a client with this Authorization header may see.

        Raises ConnectionError if the daemon refuses the request.
        """
        headers = {"Authorization": authorization} if authorization else {}
        async with self._session.get(f"http://localhost{METRICS}", headers=headers) as reply:
            if reply.status != 200:
                raise ConnectionError(f"the daemon answers {reply.status} at {METRICS}")
            return self._name, labelled(await reply.read(), self._name)

    async def _prove(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a client's challenge. The daemon can't, because the proof covers the address that the client used."""
        body = bytearray()
        async for piece in body_of(receive):
            body += piece[: proof.MAX_REPLY]
            if len(body) >= proof.MAX_REPLY:
                break
        digits, server = str(as_object(body).get("nonce")), scope.get("server")
        if not re.fullmatch(rf"[0-9a-f]{{{2 * proof.NONCE_BYTES}}}", digits):
            await reply_error(send, 400, f"nonce must be {2 * proof.NONCE_BYTES} hexadecimal digits.")
            return
        at = proof.address_of(tuple(server) if server else None)
        page = to_json(proof.answer(self._keys, bytes.fromhex(digits), at))
        headers = [(b"content-type", b"application/json"), (REPLICA, self._name.encode("latin-1", "replace"))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": page, "more_body": False})


def url_of(scope: Scope) -> URL:
    """Return the URL of a request at the daemon, with percent-encoding as the client sent it."""
    path = bytes(scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
    query = bytes(scope.get("query_string") or b"").decode("latin-1")
    return URL(f"http://localhost{path}{'?' if query else ''}{query}", encoded=True)


def kept_headers(headers: Iterable[tuple[bytes, bytes]], dropped: set[bytes]) -> list[tuple[str, str]]:
    """Return the headers with lower-case names, without those in `dropped` and those that `Connection` names."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {word.strip().lower() for name, value in pairs if name == b"connection" for word in value.split(b",")}
    return [(n.decode("latin-1"), value.decode("latin-1")) for n, value in pairs if n not in dropped | named]


async def body_of(receive: Receive) -> AsyncIterator[bytes]:
    """Yield a request's body as it arrives. Raises ConnectionResetError if the client disconnects before its end."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the client left")
        yield bytes(message.get("body", b""))
        more = bool(message.get("more_body", False))


def labelled(page: bytes, replica: str) -> bytes:
    """Add the label `replica` to every sample of a page in Prometheus' text format."""
    label = f'replica="{replica}"'
    sample = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
    text = sample.sub(lambda m: f"{m[1]}{{{label}{',' if m[2] else ''}{m[2] or ''}}} {m[3]}", page.decode())
    return text.encode()


def merged(pages: Iterable[bytes]) -> bytes:
    """Merge pages in Prometheus' text format, so that the samples of each metric stay together."""
    heads, samples = dict[str, str](), defaultdict[str, list[str]](list)
    for page in pages:
        for block in re.split(r"^(?=# HELP )", page.decode(), flags=re.MULTILINE):
            head = "".join(re.findall(r"^#.*\n", block, re.MULTILINE))
            name = head.split(" ", 3)[2] if head.startswith("# HELP ") else ""
            heads.setdefault(name, head)
            samples[name] += re.findall(r"^[^#\n].*\n", block, re.MULTILINE)
    return "".join(head + "".join(samples[name]) for name, head in heads.items()).encode()


def daemon_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove Ray's variables, and variables for settings that the replica makes, from an environment."""
    addresses = {f"{PREFIX}SERVE_{name}" for name in ("HOST", "PORT", "SOCKET", "DRAIN_SECONDS")}
    dropped = addresses | {"OMP_NUM_THREADS"}  # Ray sets OMP_NUM_THREADS to the actor's number of CPUs
    return {name: value for name, value in environment.items() if name not in dropped and not name.startswith("RAY_")}


def _piece(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}
