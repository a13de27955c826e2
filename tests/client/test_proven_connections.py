"""Which connections are used: those of the user's own daemon, again while they are open, and never another's."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from codespec.client import proof
from codespec.client.connections import ProvenConnections, is_ours
from codespec.client.daemon_client import DaemonClient
from codespec.errors import Absent

HEALTH = json.dumps({"status": "ok", "version": "1"}).encode()


class Daemon:
    """A daemon that proves itself, answers every other request with its health, and records the paths.

    It closes a connection instead of answering its request number `most`, and answers none while it `hangs`.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.paths: list[str] = []
        self.hangs = False
        self.gone = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = proof.address_of(writer.get_extra_info("sockname"))
        try:
            for _ in range(self.most - 1):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"Content-Length: (\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                self.paths.append(head.split(" ")[1])
                while self.hangs and not reader.at_eof():
                    await reader.read(1)
                is_proof = self.paths[-1] == proof.PATH
                reply = HEALTH if not is_proof else json.dumps(self.proof(json.loads(body)["nonce"], at)).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(reply) + reply)
            await reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError):
            self.gone.set()
        finally:
            writer.close()

    def proof(self, nonce: str, at: str) -> dict[str, str | None]:
        return proof.answer(proof.own_keys(""), bytes.fromhex(nonce), at)


@asynccontextmanager
async def talking(most: int) -> AsyncIterator[tuple[Daemon, DaemonClient]]:
    daemon = Daemon(most)
    server = await asyncio.start_server(daemon.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(60), server, DaemonClient(ProvenConnections(url)) as client:
        yield daemon, client


def test_a_connection_is_proven_once_and_used_again() -> None:
    async def scenario() -> None:
        async with talking(most=100) as (daemon, client):
            for _ in range(3):
                assert (await client.health()).state == "ready"
            assert daemon.paths == [proof.PATH, "/health", "/health", "/health"]

    asyncio.run(scenario())


def test_one_that_ends_when_it_is_used_again_is_replaced_by_a_proven_one() -> None:
    async def scenario() -> None:
        async with talking(most=3) as (daemon, client):
            for _ in range(2):
                assert (await client.health()).state == "ready"
            assert daemon.paths == [proof.PATH, "/health"] * 2

    asyncio.run(scenario())


def test_one_that_ends_at_its_first_request_is_not_tried_again() -> None:
    async def scenario() -> None:
        async with talking(most=2) as (daemon, client):
            assert (await client.health()).state == "absent"
            with pytest.raises(Absent, match="closed the connection"):
                await client.report("/health")
            assert daemon.paths == [proof.PATH] * 2

    asyncio.run(scenario())


def test_a_cancelled_request_closes_its_connection() -> None:
    async def scenario() -> None:
        async with talking(most=100) as (daemon, client):
            assert (await client.health()).state == "ready"
            daemon.hangs = True
            asking = asyncio.create_task(client.report("/props"))
            while daemon.paths[-1] != "/props":
                await asyncio.sleep(0.01)
            asking.cancel()
            await daemon.gone.wait()
            daemon.hangs = False
            assert (await client.health()).state == "ready"
            assert daemon.paths == [proof.PATH, "/health", "/props", proof.PATH, "/health"]

    asyncio.run(scenario())


def test_only_http_addresses() -> None:
    for url in ("nowhere", "https://127.0.0.1:1", "http://", "http://[::1"):
        with pytest.raises(ValueError, match=r"not a valid http:|Invalid"):
            ProvenConnections(url)


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not tell who listens")
def test_a_process_of_another_users_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process behind a socket is identified by the system, not by the socket's name alone."""
    one, other = socket.socketpair()
    with one, other:
        assert is_ours(one)
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
        assert not is_ours(one)
