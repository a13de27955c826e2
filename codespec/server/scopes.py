"""Who asks: what is kept of one client's texts serves nobody else, for whoever shares a cache with another can tell by
cached tokens and by times what the other one wrote.

A client is a user together with the key that it sends, which OpenAI's clients always do. The system names the user
behind a Unix socket and, on Linux, behind a connection from this machine. Where there is neither a key nor a user, each
connection is a client of its own. Knows headers and sockets; knows no texts.
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

KEYS = ("X-Api-Key", "Api-Key")  # beside Authorization
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # Linux's connections of this machine
UNNAMED = 65534  # stands for all users that have no number here (of another container), and so for none

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
End = tuple[Address, int]  # and a port


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection: its user's number, if that is known, and a name that no other connection has."""

    user: int | None
    name: str


class Scopes:
    """The clients of one daemon. Names are made with a secret of this process, so that they tell no key."""

    def __init__(self, tables: Sequence[Path] = TABLES) -> None:
        self._tables = tables
        self._secret = secrets.token_bytes(32)
        self._peers: WeakKeyDictionary[asyncio.BaseTransport, Peer] = WeakKeyDictionary()
        self._numbers = count()
        self._in_turn = asyncio.Lock()  # who asks first is admitted first: a document's newer request ends the older

    async def of(self, request: web.Request) -> str:
        """Names who sent a request."""
        key = key_of(request.headers)
        async with self._in_turn:
            peer = await self._peer(request.transport)
        if not key:
            return peer.name if peer.user is None else f"user {peer.user}"
        digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=16).hexdigest()
        return f"key {digest}" if peer.user is None else f"key {digest} of user {peer.user}"

    async def _peer(self, transport: asyncio.BaseTransport | None) -> Peer:
        """Who is at the other end, looked up once a connection."""
        if transport is None:
            return self._new(None)  # it is gone already
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
        return await asyncio.to_thread(self._look_up, peer, own)  # with many connections the tables are long

    def _look_up(self, peer: End, own: End) -> int | None:
        for table in self._tables:
            try:
                user = find_user(table.read_text(encoding="ascii"), peer, own)
            except OSError:
                continue  # no Linux, or none with this table
            if user is not None:
                return user
        return None


def key_of(headers: Mapping[str, str]) -> str:
    """All that a client sends as a key; "" where it sends none."""
    _, _, given = headers.get("Authorization", "").strip().partition(" ")
    keys = [given.strip(), *(headers.get(name, "").strip() for name in KEYS)]
    return "\n".join(keys) if any(keys) else ""


def find_user(table: str, peer: End, own: End) -> int | None:
    """The user whose socket is at the peer's end of a connection, by a table as Linux writes it; None where that socket
    is not there, or nobody holds it any more.
    """
    for first, second in _spellings(peer, own):
        place = table.find(f" {first} {second} ")
        if place >= 0:
            _, _, _, _, _, _, user, _, inode = table[place:].split(None, 9)[:9]
            return None if inode == "0" else int(user)
    return None


def _spellings(peer: End, own: End) -> Iterator[tuple[str, str]]:
    """Both ends as the tables have them; one that speaks IPv6 may have connected to an IPv4 address."""
    yield _spell(*peer), _spell(*own)
    if isinstance(peer[0], ipaddress.IPv4Address) and isinstance(own[0], ipaddress.IPv4Address):
        yield _spell(_as_ipv6(peer[0]), peer[1]), _spell(_as_ipv6(own[0]), own[1])


def _spell(address: Address, port: int) -> str:
    """Words of 32 bits as this machine reads them, and the port."""
    words = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


def _as_ipv6(address: ipaddress.IPv4Address) -> ipaddress.IPv6Address:
    return ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + address.packed)


def _end(host: str, port: int) -> End:
    """An address as sockets give it; IPv4 is IPv4 however it is written."""
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address, port


def _user_of_unix(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket; where the system has no word for it, this one, whose alone it is."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return os.getuid()
    _, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("iII")))
    return int(user)


SCOPES: web.AppKey[Scopes] = web.AppKey("scopes", Scopes)
