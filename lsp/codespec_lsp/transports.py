"""Run the language server on the standard streams, or on a local TCP port with one server for each client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from typing import BinaryIO, cast

from codespec_grammars.workers import start_fork_server
from pygls.io_ import StdinAsyncReader, StdoutWriter

from codespec.errors import ConfigError
from codespec_lsp.daemons import Daemons
from codespec_lsp.messages import Messages, Reader
from codespec_lsp.protocol import Protocol
from codespec_lsp.server import Server
from codespec_lsp.settings import Settings

MOST_LINE = 16 << 20
HOST = "127.0.0.1"


def serve_stdio(defaults: Settings) -> int:
    """Serve one client on the standard streams. Returns the exit code, 0 after an orderly shutdown."""
    _mute_pygls()
    start_fork_server()
    return asyncio.run(_serve_stdio(defaults))


def serve_tcp(port: int, defaults: Settings) -> int:
    """Serve all clients that connect until a signal arrives. Returns 0. Raises ConfigError if the port is taken."""
    _mute_pygls()
    start_fork_server()
    return asyncio.run(_serve_tcp(port, defaults))


def _mute_pygls() -> None:
    """Disable the log of pygls, which contains whole messages and so source text."""
    logging.getLogger("pygls").setLevel(logging.CRITICAL + 1)


async def _serve_stdio(defaults: Settings) -> int:
    daemons = Daemons()
    server = Server(daemons, defaults)
    messages = Messages(cast(Protocol, server.protocol))
    try:
        server.protocol.set_writer(StdoutWriter(sys.stdout.buffer))
        await messages.read(await _stdin(sys.stdin.buffer))
    except BrokenPipeError:
        return 1
    finally:
        await server.session.close()
        await daemons.close()
    return 0 if messages.ended_well else 1


async def _stdin(stream: BinaryIO) -> Reader:
    """Return a reader for standard input, without threads if the system supports that."""
    reader = asyncio.StreamReader(limit=MOST_LINE)
    try:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
    except (ValueError, NotImplementedError, OSError):  # a file, or Windows
        return StdinAsyncReader(stream)
    return reader


async def _serve_tcp(port: int, defaults: Settings) -> int:
    daemons = Daemons()
    stop = asyncio.Event()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = Server(daemons, defaults)
        server.protocol.set_writer(writer)
        try:
            await Messages(cast(Protocol, server.protocol)).read(reader)
        finally:
            await server.session.close()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    try:
        listening = await asyncio.start_server(converse, HOST, port, limit=MOST_LINE)
    except OSError as error:
        raise ConfigError(f"Can't listen on port {port} ({error.strerror})", "choose another with --tcp") from error
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(f"codespec: language server listening on {HOST}:{listening.sockets[0].getsockname()[1]}", flush=True)
    async with listening:
        await stop.wait()
    await daemons.close()
    return 0
