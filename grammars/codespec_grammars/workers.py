"""Client side of the parsing processes.

Each process is forked on demand, answers one request at a time, and is discarded if it crashes or times out.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from typing import Any

from codespec_grammars.fork_server import HEAD, ORDER, message

MOST_ANSWER = 1 << 24  # bytes
COMMAND = (sys.executable, "-P", "-m", "codespec_grammars.fork_server")  # -P: don't import from the open folder
# Prefixes of the environment variables that an interpreter needs; others may contain secrets.
_NEEDED = ("PATH", "HOME", "PYTHON", "LD_", "DYLD_", "LANG", "LC_", "VIRTUAL_ENV")


class WorkerDied(Exception):
    """Raised if the process ended or did not answer in time. It is gone then."""


class Worker:
    """A process for one service and one language. Handles one request at a time."""

    def __init__(self, service: str, language: str) -> None:
        """Request the process without waiting for it. Raises WorkerDied if it can't be started."""
        try:
            self._socket = _fork_server.order(service, language)
        except OSError as error:
            raise WorkerDied from error

    def ask(self, request: Any, seconds: float) -> Any:
        """Send a request and wait for the answer. Raises WorkerDied."""
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(message(request))
            return _read(self._receive(_length(self._receive(HEAD.size))))
        except OSError as error:
            self.close()
            raise WorkerDied from error

    async def ask_beside(self, request: Any, seconds: float) -> Any:
        """Send a request without blocking the event loop. Cancelling ends the process. Raises WorkerDied."""
        loop, answered = asyncio.get_running_loop(), False
        try:
            self._socket.setblocking(False)
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(self._socket, message(request))
                reply = _read(await self._receive_beside(_length(await self._receive_beside(HEAD.size))))
            answered = True
            return reply
        except OSError as error:
            raise WorkerDied from error
        finally:
            if not answered:
                self.close()

    def close(self) -> None:
        """End the process: at once if it is idle, else when its time limit expires."""
        self._socket.close()

    def _receive(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            data += _some(self._socket.recv(length - len(data)))
        return data

    async def _receive_beside(self, length: int) -> bytes:
        data, loop = b"", asyncio.get_running_loop()
        while len(data) < length:
            data += _some(await loop.sock_recv(self._socket, length - len(data)))
        return data


def _length(head: bytes) -> int:
    (length,) = HEAD.unpack(head)
    if length > MOST_ANSWER:
        raise ConnectionResetError("the process sent too long a reply")
    return int(length)


def _read(body: bytes) -> Any:
    """Decode an answer from a process whose memory third-party code may have corrupted."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConnectionResetError("the process sent an invalid reply") from error


def _some(data: bytes) -> bytes:
    if not data:
        raise ConnectionResetError("the process ended")
    return data


class _ForkServer:
    """The fork server of this process, started on demand and restarted if it ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def order(self, service: str, language: str) -> socket.socket:
        """Start a worker process and return our end of its socket. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            data = json.dumps([service, language]).encode().ljust(ORDER)
            try:
                socket.send_fds(self.ready(), [data], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours

    def ready(self) -> socket.socket:
        """Return the control socket, after starting the fork server if it isn't running. Raises OSError."""
        with self._lock:
            if self._control is None or self._process is None or self._process.poll() is not None:
                self.end()
                self._control, self._process = _start()
            return self._control

    def end(self) -> None:
        """Kill the fork server, which has no state to save."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None


def _start() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    if not hasattr(os, "fork"):
        raise OSError("this system does not fork")
    ours, theirs = socket.socketpair()
    environment = {name: value for name, value in os.environ.items() if name.startswith(_NEEDED)}
    try:
        process = subprocess.Popen(
            COMMAND,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours, process


_fork_server = _ForkServer()
atexit.register(_fork_server.end)


def start_fork_server() -> None:
    """Start the fork server before the first request. If that fails, the first request reports the error."""
    with contextlib.suppress(OSError):
        _fork_server.ready()
