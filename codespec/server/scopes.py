"""Identify the client of a request.

Cached data from one client's texts is never used for another client: anyone who shares a cache can infer the others'
texts from cached token counts and timings.

A client is a user together with the key that it sends, as OpenAI's clients always do. The system reports the user of a
Unix socket's peer and, on Linux, of a connection from this machine. Without a key and a user, each connection is a
separate client.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import secrets
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from weakref import WeakKeyDictionary

from aiohttp import web

KEYS = ("X-Api-Key", "Api-Key")  # in addition to Authorization
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # Linux's tables of TCP connections
UNNAMED = 65534  # shared by all users without a number here (of another container), so it identifies no client

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
End = tuple[Address, int]  # address and port


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection: its user id, if known, and a name unique to the connection."""

    user: int | None
    name: str


class Scopes:
    """The clients of one daemon. Client names do not reveal keys, which are hashed with a secret of this process."""

    def __init__(self, tables: Sequence[Path] = TABLES) -> None:
        self._tables = tables
        self._secret = secrets.token_bytes(32)
        self._peers: WeakKeyDictionary[asyncio.BaseTransport, Peer] = WeakKeyDictionary()
        self._numbers = count()
        self._lock = asyncio.Lock()  # keeps requests in order of arrival: a document's newer request ends the older

    async def of(self, request: web.Request) -> str:
        """Return the scope of a request: the name of its client."""
        key = key_of(request.headers)
        async with self._lock:
            peer = await self._peer(request.transport)
        if not key:
            return peer.name if peer.user is None else f"user {peer.user}"
        digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=16).hexdigest()
        return f"key {digest}" if peer.user is None else f"key {digest} of user {peer.user}"

    async def _peer(self, transport: asyncio.BaseTransport | None) -> Peer:
        """Return the other end of a connection; look it up only once."""
        if transport is None:
            return self._new(None)  # already closed
        if transport not in self._peers:
            self._peers[transport] = self._new(await self._find_user(transport))
        return self._peers[transport]

    def _new(self, user: int | None) -> Peer:
        return Peer(None if user == UNNAMED else user, f"connection {next(self._numbers)}")

    async def _find_user(self, transport: asyncio.BaseTransport) -> int | None:
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            return _user_of_unix(connection)
        ends = (transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
        if not all(ends):
            return None
        peer, own = (_end(*end[:2]) for end in ends)
        if not own[0].is_loopback:
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
    _, _, given = headers.get("Authorization", "").strip().partition(" ")
    keys = [given.strip(), *(headers.get(name, "").strip() for name in KEYS)]
    return "\n".join(keys) if any(keys) else ""


def find_user(table: str, peer: End, own: End) -> int | None:
    """Return the user that owns the peer's socket, according to one of Linux's tables.

    Return None if the table lacks that socket, or no process holds it any more.
    """
    for first, second in _spellings(peer, own):
        start = table.find(f" {first} {second} ")
        if start >= 0:
            _, _, _, _, _, _, user, _, inode = table[start:].split(None, 9)[:9]
            return None if inode == "0" else int(user)
    return None


def _spellings(peer: End, own: End) -> Iterator[tuple[str, str]]:
    """Yield both ends in the tables' notation. An IPv6 socket may be connected to an IPv4 address."""
    yield _spell(*peer), _spell(*own)
    if isinstance(peer[0], ipaddress.IPv4Address) and isinstance(own[0], ipaddress.IPv4Address):
        yield _spell(_as_ipv6(peer[0]), peer[1]), _spell(_as_ipv6(own[0]), own[1])


def _spell(address: Address, port: int) -> str:
    """Return the address as 32-bit hexadecimal words in the machine's byte order, and the port."""
    words = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


def _as_ipv6(address: ipaddress.IPv4Address) -> ipaddress.IPv6Address:
    return ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + address.packed)


def _end(host: str, port: int) -> End:
    """Parse an address as sockets return it. An IPv4-mapped address becomes IPv4."""
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address, port


def _user_of_unix(connection: socket.socket) -> int:
    """Return the user at the other end of a Unix socket.

    If the system does not report it, return our own user, the only one that can connect.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return os.getuid()
    _, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("iII")))
    return int(user)


SCOPES: web.AppKey[Scopes] = web.AppKey("scopes", Scopes)
