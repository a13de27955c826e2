"""Access control for the daemon, its proof to clients that it belongs to their user, and the client of a request.

Without a token or a key, the daemon answers only its own machine, under a local host name. Web pages of other origins
are refused. A client can request a proof before it sends a token or a text (`codespec.client.proof`).

Data cached for one client is never used for another: a client that shares a cache could infer the others' texts from
cached token counts and timings. A client is identified by its user and the key that it sends, as OpenAI's clients
always do. The system reports the user of a Unix socket's peer and, on Linux, of a connection from this machine. Without
a key and a user, each connection is a separate client.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
import struct
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from weakref import WeakKeyDictionary

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from codespec.api.limits import is_loopback
from codespec.client import proof
from codespec.client.connections import peer_user
from codespec.errors import ConfigError, RequestError
from codespec.server.keys_file import OWNER, Account, Keyring
from codespec.server.wire import Refused, read_fields, route_of

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
MAX_PROOF_BODY = 256  # bytes; requests for a proof need no token
PROOF_KEYS: web.AppKey[proof.Keys] = web.AppKey("keys", proof.Keys)
ALIVE = "/health"  # without Authorization it reports only that the process lives
METRICS = "/metrics"
KEY_HEADERS = ("X-Api-Key", "Api-Key")  # in addition to Authorization
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # Linux's tables of TCP connections
UNNAMED = 65534  # shared by all users without a number here (of another container), so it identifies no client

MAPPED = f"(?:0{{16}}{'FFFF0000' if sys.byteorder == 'little' else '0000FFFF'})?"  # ::ffff: before an IPv4 address
End = tuple[str, int]  # address and port


@dataclass(frozen=True, slots=True)
class Access:
    """The accepted credentials: the owner's `token`, keys, and a scraper's own. With neither of the first two, all."""

    token: str = ""
    metrics_token: str = ""
    keyring: Keyring | None = None

    @property
    def is_open(self) -> bool:
        return not self.token and self.keyring is None

    def identify(self, request: web.Request) -> Account | None:
        """Return the account of a request's client. Raise Refused if its token is missing or opens other routes."""
        token, route = _bearer(request), route_of(request)
        if _is_same(token, self.token):
            return self.keyring.owner if self.keyring else None
        if route == METRICS and _is_same(token, self.metrics_token):
            return None
        if self.keyring is not None and (account := self.keyring.find(token)):
            if route == METRICS:
                raise Refused(f"{route} needs the owner's token: a key does not open it.", "Authorization", 403)
            return account
        if not self.is_open or (route == METRICS and self.metrics_token):
            raise Refused("Authorization lacks the daemon's token: send it as a Bearer token.", "Authorization", 401)
        return None


ACCOUNT: web.RequestKey[Account] = web.RequestKey("account", Account)


def own_key(request: web.Request) -> str:
    """Return the name of a request's key, for replies that must not reveal others; "" for the owner or without keys."""
    account: Account | None = request.get(ACCOUNT)
    return "" if account is None or account.name == OWNER else account.name


def guard(host: str, access: Access, open_paths: Collection[str] = ()) -> Middleware:
    """Return a middleware that refuses foreign hosts and origins, and tokens missing outside of `open_paths`."""
    names = {*LOCAL_NAMES, host.lower(), f"[{host}]".lower()} if is_loopback(host) else None

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if names is not None:
            _check_host(request, names)
        _check_origin(request)
        route = route_of(request)
        if route == ALIVE and not access.is_open and "Authorization" not in request.headers:
            return web.json_response({"status": "alive"})
        account = None if route in open_paths else access.identify(request)
        if account is not None:
            request[ACCOUNT] = account
            account.requests += request.method == "POST"
        return await handler(request)

    return check


def _check_host(request: web.Request, names: set[str]) -> None:
    """Refuse foreign host names. In a DNS rebinding attack, the browser still sends the page's own host name."""
    host = request.headers.get("Host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() not in names:
        raise Refused("Host is refused (only localhost is accepted): use 127.0.0.1 in the address.", "Host", 403)


def _check_origin(request: web.Request) -> None:
    """Refuse foreign origins. Browsers send the page's origin; only the daemon's own page may send requests."""
    origin = request.headers.get("Origin")
    own = (f"http://{request.headers.get('Host', '')}", f"https://{request.headers.get('Host', '')}")
    if origin is not None and origin.lower() not in (name.lower() for name in own):
        raise Refused("Origin is refused (a page of another site): use an editor or a terminal.", "Origin", 403)


def _bearer(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _is_same(token: str, expected: str) -> bool:
    """Compare tokens in constant time; return False if none is `expected`."""
    return bool(expected) and hmac.compare_digest(token.encode("utf-8", "replace"), expected.encode())


async def prove(request: web.Request) -> web.Response:
    """Answer a nonce with the daemon's proof for the address that the connection arrived at."""
    if request.content_length is None or request.content_length > MAX_PROOF_BODY:
        raise Refused(f"The body must have at most {MAX_PROOF_BODY} bytes: send only a nonce.", "body", 413)
    with await read_fields(request) as fields:
        fields.only(("nonce", "key"))
        nonce = fields.text("nonce", most=2 * proof.NONCE_BYTES)
        key_id = fields.text("key", "", most=proof.KEY_ID)
    if not re.fullmatch(rf"[0-9a-f]{{{2 * proof.NONCE_BYTES}}}", nonce):
        raise RequestError(f"nonce must be {2 * proof.NONCE_BYTES} hexadecimal digits.", "nonce")
    at = proof.address_of(None if request.transport is None else request.transport.get_extra_info("sockname"))
    keys, keyring = request.app[PROOF_KEYS], request.app.get(ACCESS, Access()).keyring
    if keyring is not None and (key_hash := keyring.hash_by_id(key_id)):
        keys = replace(keys, key=proof.from_key_hash(key_hash))
    return web.json_response(proof.answer(keys, bytes.fromhex(nonce), at))


def proof_keys(token: str) -> proof.Keys:
    """Return the keys for the daemon's proof.

    If the user's secret can't be used, print the reason and continue: clients that need no proof can still be served,
    and a token is a key too.
    """
    try:
        return proof.own_keys(token)
    except ConfigError as error:
        print(f"codespec: editors can't verify this daemon. {error}", file=sys.stderr, flush=True)
        return proof.Keys(None, proof.stretched(token))


Peer = tuple[int | None, str]  # a connection's user id, if known, and its own name


class Scopes:
    """The clients of one daemon. Client names do not reveal keys, which are hashed with a secret of this process."""

    def __init__(self, tables: Sequence[Path] = TABLES) -> None:
        self._tables = tables
        self._secret = secrets.token_bytes(32)
        self._peers: WeakKeyDictionary[asyncio.BaseTransport, Peer] = WeakKeyDictionary()
        self._numbers = count()
        self._lock = asyncio.Lock()  # keeps requests in order of arrival: a newer request for a document ends the older

    async def of(self, request: web.Request) -> str:
        """Return the scope of a request: the name of its client."""
        key = key_of(request.headers)
        async with self._lock:
            user, name = await self._peer(request.transport)
        if not key:
            return name if user is None else f"user {user}"
        digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=16).hexdigest()
        return f"key {digest}" if user is None else f"key {digest} of user {user}"

    async def _peer(self, transport: asyncio.BaseTransport | None) -> Peer:
        """Return the other end of a connection; look it up only once."""
        if transport is not None and transport in self._peers:
            return self._peers[transport]
        user = None if transport is None else await self._find_user(transport)  # None: already closed
        peer = None if user == UNNAMED else user, f"connection {next(self._numbers)}"
        if transport is not None:
            self._peers[transport] = peer
        return peer

    async def _find_user(self, transport: asyncio.BaseTransport) -> int | None:
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            user = peer_user(connection)
            return os.getuid() if user is None else user  # only our own user can connect
        ends = (transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
        if not all(ends):
            return None
        peer, own = ((host.removeprefix("::ffff:"), port) for host, port, *_ in ends)
        if not is_loopback(own[0]):
            return None
        return await asyncio.to_thread(self._look_up, peer, own)  # the tables are long if there are many connections

    def _look_up(self, peer: End, own: End) -> int | None:
        for table in self._tables:
            try:
                user = find_user(table.read_text(encoding="ascii"), peer, own)
            except OSError:
                continue  # not Linux, or a kernel without this table
            if user is not None:
                return user
        return None


def key_of(headers: Mapping[str, str]) -> str:
    """Return all keys in the headers, joined by newlines, or "" if there are none."""
    _, _, token = headers.get("Authorization", "").strip().partition(" ")
    keys = [token.strip(), *(headers.get(name, "").strip() for name in KEY_HEADERS)]
    return "\n".join(keys) if any(keys) else ""


def find_user(table: str, peer: End, own: End) -> int | None:
    """Return the user whose process holds the peer's socket, by one of Linux's tables, or None."""
    # An IPv6 socket may be connected to an IPv4 address (`MAPPED`).
    row = re.search(rf" {MAPPED}{_spell(*peer)} {MAPPED}{_spell(*own)} (.*)", table)
    if row is None:
        return None
    _, _, _, _, user, _, inode = row[1].split(None, 7)[:7]
    return None if inode == "0" else int(user)


def _spell(address: str, port: int) -> str:
    """Return an address as in the tables: 32-bit hexadecimal words in the machine's byte order, and the port."""
    packed = ipaddress.ip_address(address).packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


ACCESS: web.AppKey[Access] = web.AppKey("access", Access)
SCOPES: web.AppKey[Scopes] = web.AppKey("scopes", Scopes)
PROOF_ROUTES = [web.post(proof.PATH, prove)]
PROOF_PATHS = frozenset({proof.PATH})  # open: clients request the proof before they send the token
