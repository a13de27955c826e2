"""JSON-RPC over a stream: read frames, pass messages to the protocol, and answer invalid messages with an error.

The text of a message is never logged. The stream is standard input, or one of many connections to a local TCP port,
each of which has its own server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import stat
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from codespec_grammars.workers import start_fork_server
from lsprotocol.types import EXIT, INITIALIZE, TEXT_DOCUMENT_DID_CHANGE
from pygls.exceptions import JsonRpcException, JsonRpcInternalError, JsonRpcInvalidRequest
from pygls.io_ import StdinAsyncReader, StdoutWriter

from codespec.errors import ConfigError
from codespec.files import TooLarge, parse_json
from codespec_lsp.daemon import Daemons
from codespec_lsp.protocol import LspProtocol
from codespec_lsp.server import Server
from codespec_lsp.settings import EditorSettings

MAX_BODY = 64 << 20
MAX_SKIPPED = 4 << 30  # bytes of a message that is skipped; larger lengths are invalid
PIECE, ENDS = 1 << 20, 1 << 16  # bytes skipped at a time; bytes stored of each end, which contain the method
MAX_LINE = 16 << 20
HOST = "127.0.0.1"
MAX_HEADER_LINES = 32
MAX_TOLD = 100  # different sentences on stderr
PROCESS_CHECK_INTERVAL_S = 3.0  # seconds between checks whether a process runs, on systems that don't report its end
PARSE_ERROR, INVALID_REQUEST, NOT_INITIALIZED = -32700, -32600, -32002
_LENGTH = re.compile(rb"content-length:[ \t]*(\d{1,12})[ \t]*\r?\n", re.IGNORECASE)
_TYPE = re.compile(rb"content-type:[^\r\n]*\r?\n", re.IGNORECASE)
Reader = asyncio.StreamReader | StdinAsyncReader
_CHANGE = re.compile(rb"[dD]idChange\"")  # the quoted end of a method that changes documents


class Skipped(bytes):
    """The first and last bytes of a message that is too long to read."""


class Messages:
    """The message loop of one connection."""

    def __init__(self, protocol: LspProtocol) -> None:
        self._protocol = protocol
        self._initialized = False
        self._told: set[str] = set()  # sentences already written to stderr
        self.ended_well = False
        self.editor: asyncio.Future[int] = asyncio.get_running_loop().create_future()  # its process id

    async def read(self, reader: Reader) -> None:
        """Handle messages until the client sends exit or disconnects, or until framing is lost."""
        while (body := await _read_body(reader)) is not None:
            if not isinstance(body, bytes):
                self._refuse(None, PARSE_ERROR, body)
                return
            if isinstance(body, Skipped):
                self._refuse_unread(body, f"A message is longer than {MAX_BODY >> 20} MiB.")
            elif self._take(body):
                self.ended_well = self._protocol.shut_down
                return

    def _take(self, body: bytes) -> bool:
        """Handle one message. Returns True for exit."""
        try:
            data = parse_json(body)
        except ValueError as error:
            too_large = isinstance(error, TooLarge)
            self._refuse_unread(
                body, f"The message can't be read: {error}." if too_large else "The message is not JSON."
            )
            return False
        wrong = _what_is_wrong(data)
        if wrong:
            self._refuse(_id_of(data), INVALID_REQUEST, wrong)
            for each in data if isinstance(data, list) else [data]:
                self._protocol.left_out(each if isinstance(each, dict) else {})
            return False
        if "method" not in data and _id_of(data) is None:  # a response that matches no request of ours
            return False
        method, is_request = data.get("method"), "id" in data and "method" in data
        if method == EXIT:
            return True
        if not self._in_order(method, is_request, data.get("id")):
            return False
        try:
            message = self._protocol.structure_message(data)
            if is_request and not hasattr(message, "id"):
                raise JsonRpcInvalidRequest("The method is a notification, which must have no id.")
            self._protocol.handle_message(message)
            if method == INITIALIZE and message.params.process_id is not None:
                self.editor.set_result(message.params.process_id)
            return False
        except JsonRpcException as error:
            reply, told = error, f"{error.message} Please report this to the makers of the editor."
        except Exception as error:  # one bad message must not end the connection
            reply = JsonRpcInternalError(f"The server failed ({type(error).__name__}): please report this bug.")
            told = f"a message was skipped ({type(error).__name__}): please report this bug."
        if is_request:
            self._protocol._send_response(data["id"], None, reply.to_response_error())
        self._protocol.left_out(data)
        if not is_request and told not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(told)
            sys.stderr.write(f"codespec lsp: {told}\n")
        return False

    def _refuse_unread(self, body: bytes, sentence: str) -> None:
        """Refuse a message that can't be parsed. If the message may be a change, mark all documents as lost."""
        self._refuse(None, PARSE_ERROR, sentence)
        if _CHANGE.search(body.replace(b"\0", b"")):  # without the zeros of UTF-16
            self._protocol.left_out({"method": TEXT_DOCUMENT_DID_CHANGE})

    def _in_order(self, method: Any, is_request: bool, number: Any) -> bool:
        """Return whether a message comes after initialize and before shutdown, and refuse requests at other times."""
        if method is None:
            return self._initialized
        wrong, code = "", INVALID_REQUEST
        if self._protocol.shut_down:
            wrong = "The server was shut down."
        elif method == INITIALIZE:
            wrong = "The server is already initialized." if self._initialized else ""
            self._initialized = self._initialized or is_request
        elif not self._initialized:
            wrong, code = "The server is not initialized yet.", NOT_INITIALIZED
        if wrong and is_request:
            self._refuse(number, code, wrong)
        return not wrong

    def _refuse(self, number: Any, code: int, sentence: str) -> None:
        self._protocol._send_data({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": sentence}})


async def _read_body(reader: Reader) -> bytes | str | None:
    """Read the next message body. Return None at the end of the stream, or a sentence if a header is invalid."""
    length = None
    try:
        for _ in range(MAX_HEADER_LINES):
            line = await reader.readline()
            if not line.endswith(b"\n"):
                return None
            if match := _LENGTH.fullmatch(line):
                length = int(match[1])
            elif not line.strip():
                break
            elif not _TYPE.fullmatch(line):
                return "A header is neither Content-Length nor Content-Type."  # a web page can send HTTP to any port
        if length is None:
            return "The Content-Length header is missing."
        if length > MAX_SKIPPED:
            return f"A message is longer than {MAX_BODY >> 20} MiB."
        if length > MAX_BODY:
            return await _skip(reader, length)
        body = await reader.readexactly(length)
        return body if len(body) == length else None
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except (asyncio.LimitOverrunError, ValueError):
        return "A header line is too long."


async def _skip(reader: Reader, length: int) -> Skipped:
    """Skip a long message, because a huge file in one editor window must not end completion in the other windows."""
    first = last = await reader.readexactly(ENDS)
    left = length - len(first)
    while left > 0:
        piece = await reader.readexactly(min(PIECE, left))
        if not piece:
            raise asyncio.IncompleteReadError(piece, left)
        left, last = left - len(piece), (last + piece)[-ENDS:]
    return Skipped(first + last)


def _what_is_wrong(data: Any) -> str:
    """Return one sentence that explains why a JSON value is not a valid message, or ""."""
    if not isinstance(data, dict) or data.get("jsonrpc") != "2.0":
        return "This is not a JSON-RPC 2.0 message."
    if "id" in data and _id_of(data) is None:
        return "The id is neither a string nor a whole number." if "method" in data else ""
    if "method" in data and not isinstance(data["method"], str):
        return "The method is not a string."
    return ""


def _id_of(data: Any) -> int | str | None:
    number = data.get("id") if isinstance(data, dict) else None
    return number if isinstance(number, (int, str)) and not isinstance(number, bool) else None


def serve(defaults: EditorSettings, port: int | None, *, copilot: bool) -> int:
    """Serve one client on the standard streams, or all clients of a TCP port until a signal arrives.

    Returns the exit code. `copilot` marks clients made for Copilot. Raises ConfigError if the port is taken.
    """
    logging.getLogger("pygls").setLevel(logging.CRITICAL + 1)  # its log would contain source text
    start_fork_server()
    return asyncio.run(_serve_stdio(defaults, copilot) if port is None else _serve_tcp(port, defaults, copilot))


async def _serve_stdio(defaults: EditorSettings, copilot: bool) -> int:
    daemons = Daemons()
    server = Server(daemons, defaults, copilot=copilot)
    messages = Messages(cast(LspProtocol, server.protocol))
    try:
        server.protocol.set_writer(StdoutWriter(sys.stdout.buffer))
        reader = await _stdin(sys.stdin.buffer)
        orphaned = await _read_while_editor_runs(messages, reader)
    except BrokenPipeError:
        return 1
    finally:
        await server.session.close()
        await daemons.close()
    if orphaned and isinstance(reader, StdinAsyncReader):
        os._exit(1)  # its thread waits for the pipe, and the interpreter would wait for the thread
    return 0 if messages.ended_well else 1


async def _read_while_editor_runs(messages: Messages, reader: Reader) -> bool:
    """Handle messages until the stream ends or the editor's process exits. Return whether the process exited first."""

    async def editor_ends() -> None:
        await wait_for_end(await messages.editor)

    reading, waiting = asyncio.create_task(messages.read(reader)), asyncio.create_task(editor_ends())
    try:
        await asyncio.wait((reading, waiting), return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            await reading
        return not reading.done()
    finally:
        for task in (reading, waiting):
            task.cancel()
        await asyncio.gather(reading, waiting, return_exceptions=True)


async def _stdin(stream: BinaryIO) -> Reader:
    """Return a reader for standard input, without a thread if the system supports that."""
    if not _can_be_polled(stream):
        return StdinAsyncReader(stream)
    reader = asyncio.StreamReader(limit=MAX_LINE)
    try:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
    except (ValueError, NotImplementedError, OSError):  # a file, or Windows
        return StdinAsyncReader(stream)
    return reader


def _can_be_polled(stream: BinaryIO) -> bool:
    """Return whether the event loop can wait for a stream, unlike for /dev/null."""
    mode = os.fstat(stream.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stream.isatty()


async def _serve_tcp(port: int, defaults: EditorSettings, copilot: bool) -> int:
    daemons = Daemons()
    stop = asyncio.Event()
    clients, reading = set["asyncio.Task[None]"](), set["asyncio.Task[None]"]()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = Server(daemons, defaults, copilot=copilot)
        server.protocol.set_writer(writer)
        task = cast("asyncio.Task[None]", asyncio.current_task())
        clients.add(task)
        reading.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the server ends
                await Messages(cast(LspProtocol, server.protocol)).read(reader)
        finally:
            reading.discard(task)  # at shutdown, a client that is leaving is not cancelled
            await server.session.close()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            clients.discard(task)

    try:
        listening = await asyncio.start_server(converse, HOST, port, limit=MAX_LINE)
    except OSError as error:
        raise ConfigError(
            f"Can't listen on port {port} ({error.strerror})", "choose another port with --tcp PORT"
        ) from error
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(f"codespec: language server listening on {HOST}:{listening.sockets[0].getsockname()[1]}", flush=True)
    async with listening:
        await stop.wait()
        listening.close()
        for client in reading:
            client.cancel()
        await asyncio.gather(*clients)
    await daemons.close()
    return 0


async def wait_for_end(pid: int) -> None:
    """Wait until a process has exited, because its pipes may stay open in other processes that inherited them."""
    if sys.platform != "linux":
        runs = _windows_process(pid) if sys.platform == "win32" else lambda: _runs(pid)
        while runs():
            await asyncio.sleep(PROCESS_CHECK_INTERVAL_S)
        return
    try:
        process = os.pidfd_open(pid)  # becomes readable even if the exited process remains a zombie
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(process, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


def _runs(pid: int) -> bool:
    """Return whether a process exists. On Windows, `os.kill` would terminate the process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


if sys.platform == "win32":

    def _windows_process(pid: int) -> Callable[[], bool]:
        """Return a function that reports whether a process is running; a handle prevents reuse of the process id."""
        import ctypes

        synchronize, access_denied, still_running = 0x00100000, 5, 0x102
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.OpenProcess.restype = ctypes.c_void_p
        handle = ctypes.c_void_p(kernel.OpenProcess(synchronize, False, pid))
        if not handle:
            denied = ctypes.get_last_error() == access_denied
            return lambda: denied
        return lambda: bool(kernel.WaitForSingleObject(handle, 0) == still_running)
