"""Client scopes, from the system's connection tables and the clients' headers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from codespec.server.middleware import UNNAMED, Scopes, find_user, key_of

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
REST = "00000000:00000000 00:00000000 00000000"
IPV4 = f"""{HEAD}\
   0: 0100007F:223D 00000000:0000 0A {REST}  1000        0 3131 1 0000000000000000 100 0 0 10 0
   1: 0100007F:C0DE 0100007F:223D 01 {REST}  1001        0 4010 1 0000000000000000 20 4 30 10 -1
   2: 0100007F:223D 0100007F:C0DE 01 {REST}  1000        0 3140 1 0000000000000000 20 4 30 10 -1
   3: 0100007F:C0DF 0100007F:223D 05 {REST}     0        0 0 1 0000000000000000 20 4 30 10 -1
   4: 0100007F:C0E0 0100007F:223D 06 {REST}     0        0 0 3 0000000000000000
   5: 0200007F:C0E1 0100007F:223D 01 {REST}     0        0 4011 1 0000000000000000 20 4 30 10 -1
"""
ONE, MAPPED = "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"
IPV6 = f"""{HEAD}\
   0: {ONE}:C0DE {ONE}:223D 01 {REST}  1002        0 4012 1 0000000000000000 20 4 30 10 -1
   1: {MAPPED}:C0E2 {MAPPED}:223D 01 {REST}  1003        0 4013 1 0000000000000000 20 4 30 10 -1
"""


@pytest.mark.parametrize(
    ("table", "peer", "port", "user"),
    [
        (IPV4, "127.0.0.1", 0xC0DE, 1001),
        (IPV4, "127.0.0.2", 0xC0E1, 0),
        (IPV4, "127.0.0.2", 0xC0DE, None),
        (IPV4, "127.0.0.1", 0xC0DF, None),
        (IPV4, "127.0.0.1", 0xC0E0, None),
        (IPV4, "127.0.0.1", 0x223D, None),
        (IPV6, "::1", 0xC0DE, 1002),
        (IPV6, "127.0.0.1", 0xC0E2, 1003),
        (IPV6, "127.0.0.1", 0xC0DE, None),
        (HEAD, "::1", 0xC0DE, None),
    ],
    ids=["user", "root", "address", "closed", "waiting", "listening", "IPv6", "IPv4 by IPv6", "other end", "empty"],
)
def test_the_user_at_the_peers_end(table: str, peer: str, port: int, user: int | None) -> None:
    """As a little-endian machine writes it. A closed connection reports user 0, which is not treated as root."""
    own = "::1" if peer == "::1" else "127.0.0.1"
    assert find_user(table, (peer, port), (own, 0x223D)) == user


def test_a_key_is_a_key_in_whichever_header() -> None:
    sent = (
        {"Authorization": "Bearer a"},
        {"Authorization": "Bearer b"},
        {"X-Api-Key": "a"},
        {"Api-Key": "a"},
        {"Authorization": "Bearer a", "X-Api-Key": "a"},
    )
    assert len({key_of(headers) for headers in sent}) == len(sent) and all(map(key_of, sent))
    assert key_of({"Authorization": " bearer  a "}) == key_of({"Authorization": "Bearer a"})
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": ""}, {"X-Api-Key": " "}):
        assert key_of(headers) == ""


class Transport(asyncio.Transport):
    """One end of a connection as a server sees it."""

    def __init__(self, taken: socket.socket) -> None:
        named = taken.family != socket.AF_UNIX
        ends = {"peername": taken.getpeername(), "sockname": taken.getsockname()} if named else {}
        super().__init__({"socket": taken, **ends})


@contextmanager
def connections(family: int, host: str, count: int) -> Iterator[list[Transport]]:
    """Open connections from this process to itself."""
    with closing(socket.socket(family)) as listening:
        listening.bind((host, 0))
        listening.listen()
        asking = [socket.create_connection((host, listening.getsockname()[1])) for _ in range(count)]
        taken = [listening.accept()[0] for _ in range(count)]
        try:
            yield [Transport(one) for one in taken]
        finally:
            for one in (*asking, *taken):
                one.close()


def names(scopes: Scopes, *asking: tuple[asyncio.Transport, dict[str, str]]) -> list[str]:
    """Return the scopes of requests on connections with these headers."""

    async def ask() -> list[str]:
        requests = [make_mocked_request("POST", "/", headers, transport=one) for one, headers in asking]
        return [await scopes.of(request) for request in requests]

    return asyncio.run(ask())


def test_a_users_own_connections_are_one_client() -> None:
    mine = f"user {os.getuid()}"
    with connections(socket.AF_INET, "127.0.0.1", 2) as (first, second):
        assert names(Scopes(), (first, {}), (second, {}), (first, {})) == [mine] * 3
        keyed = names(Scopes(), *((one, {"X-Api-Key": key}) for one in (first, second) for key in "ab"))
        assert keyed[:2] == keyed[2:] and len({*keyed, mine}) == 3 and "a" not in keyed[0].split()
    here, there = socket.socketpair()
    with closing(here), closing(there):
        assert names(Scopes(), (Transport(there), {})) == [mine]


def test_each_connection_is_a_client_where_the_system_does_not_say(tmp_path: Path) -> None:
    scopes, key = Scopes([tmp_path / "none"]), {"Authorization": "Bearer a"}
    with connections(socket.AF_INET, "127.0.0.1", 2) as (first, second):
        one, other, again, *keyed = names(scopes, (first, {}), (second, {}), (first, {}), (first, key), (second, key))
    assert one == again != other and keyed[0] == keyed[1] not in (one, other)


def test_the_user_without_a_number_is_nobody(tmp_path: Path) -> None:
    """All users of other containers share this one number."""
    with connections(socket.AF_INET, "127.0.0.1", 1) as (only,):
        ends = [end.split(":")[0] for end in ("0100007F:1", "0100007F:2")]
        port, own = only.get_extra_info("peername")[1], only.get_extra_info("sockname")[1]
        table = tmp_path / "tcp"
        table.write_text(
            f"{HEAD}   0: {ends[0]}:{port:04X} {ends[1]}:{own:04X} 01 {REST} {UNNAMED} 0 7 1 0 20 4 30 10 -1\n"
        )
        assert names(Scopes([table]), (only, {})) == ["connection 0"]
        table.write_text(table.read_text().replace(f" {UNNAMED} ", " 1234 "))
        assert names(Scopes([table]), (only, {})) == ["user 1234"]


def test_names_tell_no_key() -> None:
    """Two daemons give different names, so a list of known keys does not help."""
    with connections(socket.AF_INET, "127.0.0.1", 1) as (only,):
        first, second = (names(Scopes(), (only, {"X-Api-Key": "guess"}))[0] for _ in range(2))
    assert first != second and "guess" not in first
