"""A closed connection and its meaning for the identity of the peer."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from codespec.client.connections import ProvenConnections
from codespec.client.daemon_client import DaemonClient, read_health

AT_ONCE = struct.pack("ii", 1, 0)  # closing resets the connection, like a killed process


async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    writer.close()


def test_a_connection_that_is_cut_is_nobody() -> None:
    """Formerly it was reported as a foreign daemon, so a request failed if the user's daemon had just died."""

    async def look() -> str:
        server = await asyncio.start_server(cut, "127.0.0.1", 0)
        client = DaemonClient(ProvenConnections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        async with server:
            try:
                return (await client.health()).state
            finally:
                await client.close()

    assert asyncio.run(look()) == "absent"


@pytest.mark.parametrize(
    ("status", "error", "state", "sentence"),
    [
        (503, {"message": "It loads: wait.", "state": "starting"}, "starting", ""),
        (503, {"message": "It ends: wait.", "state": "stopping"}, "starting", ""),
        (503, {"message": "x is broken: mend it.", "state": "failed"}, "foreign", "x is broken: mend it."),
        (503, {"message": "Somebody else is starting."}, "foreign", "Somebody else is starting."),
        (404, {"message": "starting"}, "foreign", ""),
        (500, {}, "foreign", ""),
    ],
)
def test_its_state_is_read_from_a_field_and_never_from_a_sentence(
    status: int, error: dict[str, str], state: str, sentence: str
) -> None:
    found = read_health(status, {"error": error})
    assert (found.state, found.fault.sentence if found.fault else "") == (state, sentence)
    assert found.message == error.get("message", f"status {status}")
