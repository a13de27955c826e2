"""What a connection that ends tells of who was at its other end."""

from __future__ import annotations

import asyncio
import socket
import struct

from codespec_lsp.daemon_client import DaemonClient

AT_ONCE = struct.pack("ii", 1, 0)  # closing resets the connection, as the end of a killed process does


async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    writer.close()


def test_a_connection_that_is_cut_is_nobody() -> None:
    """It was said to be no daemon of ours, so that the text of somebody whose daemon had died just then failed."""

    async def look() -> str:
        server = await asyncio.start_server(cut, "127.0.0.1", 0)
        client = DaemonClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with server:
            try:
                return (await client.health()).state
            finally:
                await client.close()

    assert asyncio.run(look()) == "absent"
