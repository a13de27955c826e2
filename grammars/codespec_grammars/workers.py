"""Parse untrusted text in separate processes, forked by a fork server.

A grammar is third-party C code, which on some texts crashes, loops or exhausts memory. Text is therefore never parsed
in the process that needs the result. A forked process already has the grammar loaded and is ready in a millisecond, so
a process that died is replaced at once. Each process has limits on memory and on CPU time per request, and exits when
its socket closes. A service is named `module:Class`. The class of a service is constructed with a language and has a
method `answer` and the limits `SECONDS` and `MEMORY`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from codespec_grammars.grammar import Captures, Context, load_grammar

ORDER = 256  # bytes of an order to fork, padded with spaces because a stream socket has no message boundaries
HEAD = struct.Struct("!I")  # length prefix of a message
MAX_ANSWER = 1 << 24  # bytes
# -P: import nothing from the current folder.
COMMAND = (sys.executable, "-P", "-c", "from codespec_grammars.workers import serve_forks; serve_forks()")
# Prefixes of the environment variables that an interpreter needs; all others may contain secrets.
_NEEDED = ("PATH", "HOME", "PYTHON", "LD_", "DYLD_", "LANG", "LC_", "VIRTUAL_ENV")
LOOK_UP = "codespec_grammars.grammar:WindowService"
LOOK_UP_SECONDS = 10.0  # wall-clock timeout, much longer than the CPU limit because the first process has to start
REPORT = (
    "The %s grammar failed on a text (it crashed, or took too much time or memory): such texts are completed without "
    "their syntax."
)
log = logging.getLogger("codespec_grammars")


class WorkerDied(Exception):
    """Raised if a process cannot be started, exits, or is ended because it does not answer in time."""


class Worker:
    """A process for one service and one language, which handles one request at a time."""

    def __init__(self, service: str, language: str) -> None:
        """Ask the fork server for a process. Raises WorkerDied if the fork server can't be reached."""
        try:
            self._socket, self._life = _fork_server.order(service, language)
        except OSError as error:
            raise WorkerDied from error

    def ask(self, request: Any, seconds: float) -> Any:
        """Send a request and return the answer. Raises WorkerDied if there is no answer within `seconds`."""
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(message(request))
            return _read(self._receive(_length(self._receive(HEAD.size))))
        except OSError as error:
            self.close()
            raise WorkerDied from error

    async def ask_beside(self, request: Any, seconds: float) -> Any:
        """Do the same as `ask` without blocking the event loop. Cancelling the call ends the process."""
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
        """End the process: on Linux at once, elsewhere when the process is idle or its time limit expires."""
        self._socket.close()
        self._life.close()

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
    if length > MAX_ANSWER:
        raise ConnectionResetError("the reply of the process is too long")
    return int(length)


def _read(body: bytes) -> Any:
    try:  # third-party code may have corrupted the memory of the process
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConnectionResetError("the process sent an invalid reply") from error


def _some(data: bytes) -> bytes:
    if not data:
        raise ConnectionResetError("the process exited")
    return data


class _ForkServer:
    """The fork server of this process, started on demand and restarted if it has exited."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def order(self, service: str, language: str) -> tuple[socket.socket, socket.socket]:
        """Fork a process. Returns our ends of two sockets: one for requests, one that ends the process when closed."""
        (ours, theirs), (our_life, their_life) = socket.socketpair(), socket.socketpair()
        with theirs, their_life:
            data = json.dumps([service, language]).encode().ljust(ORDER)
            try:
                socket.send_fds(self.ready(), [data], [theirs.fileno(), their_life.fileno()])
            except OSError:
                ours.close()
                our_life.close()
                raise
        return ours, our_life

    def ready(self) -> socket.socket:
        """Start the fork server if it isn't running, and return its control socket. Raises OSError."""
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
        raise OSError("this system does not support os.fork")
    ours, theirs = socket.socketpair()
    environment = {name: value for name, value in os.environ.items() if name.startswith(_NEEDED)}
    try:
        nowhere = subprocess.DEVNULL
        process = subprocess.Popen(COMMAND, stdin=theirs.fileno(), stdout=nowhere, stderr=nowhere, env=environment)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours, process


_fork_server = _ForkServer()
atexit.register(_fork_server.end)


def start_fork_server() -> None:
    """Start the fork server in advance, and ignore an error, which the first request will report."""
    with contextlib.suppress(OSError):
        _fork_server.ready()


_lock = threading.Lock()
_workers: dict[str, Worker] = {}
_reported: set[str] = set()


def prepare(language: str) -> None:
    """Start the process of a language in advance, and ignore an error, which the first lookup will report."""
    with _lock, contextlib.suppress(WorkerDied):
        if language not in _workers:
            _workers[language] = Worker(LOOK_UP, language)


def look_up(language: str, text: str, tip: int, width: int, left: int) -> Captures | None:
    """Run `grammar.look_up` on the tree of a text, in the language's process. Returns None if the parser gave up.

    Raises WorkerDied if the process crashes on the text or does not answer in time; another process is started for the
    next text.
    """
    with _lock:
        try:
            reply = _ask(language, (text, tip, width, left))
        except WorkerDied:
            if language not in _reported:  # only once, because the text may be parsed again with every key
                _reported.add(language)
                log.warning(REPORT, language)
            raise
    if reply is None:
        return None
    inside, token = (Context(name) if name else None for name in reply[:2])
    return Captures(inside, token, *reply[2:])


def _ask(language: str, request: tuple[str, int, int, int]) -> Any:
    """Send a request to the language's process, or to a new process if that process has died."""
    worker = _workers.pop(language, None)
    if worker is not None:
        with contextlib.suppress(WorkerDied):
            reply = worker.ask(request, LOOK_UP_SECONDS)
            _workers[language] = worker
            return reply
    worker = Worker(LOOK_UP, language)
    reply = worker.ask(request, LOOK_UP_SECONDS)
    _workers[language] = worker
    return reply


def serve_forks() -> None:
    """Run the fork server, which forks a process for each order on stdin until the parent process has exited."""
    import resource  # not available on Windows, which can't fork

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # writing a core dump takes a second
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends the signal to the language server's children too
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps exited children
    control = socket.socket(fileno=os.dup(0))
    while True:
        data, channels, _, _ = socket.recv_fds(control, ORDER, 2)
        if not data:
            return
        name, language = json.loads(data)
        module, _, kind = name.partition(":")
        service = getattr(importlib.import_module(module), kind)
        load_grammar(language)  # before the fork, so that later forks have the grammar too
        if os.fork() == 0:
            control.close()
            channel, life = (socket.socket(fileno=number) for number in channels)
            _serve(channel, life, service, language)
            os._exit(0)
        for number in channels:
            os.close(number)


def _serve(channel: socket.socket, life: socket.socket, service: Any, language: str) -> None:
    """Answer the requests that arrive on `channel` until that socket is closed."""
    # The kernel kills the process if it exceeds its limits, or by SIGIO when the client closes its end of `life`.
    import fcntl  # not available on Windows

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    bound_memory(service.MEMORY)
    answer: Callable[[Any], Any] = service(language).answer
    with channel.makefile("rb") as requests:
        while head := requests.read(HEAD.size):
            request = json.loads(requests.read(HEAD.unpack(head)[0]))
            signal.setitimer(signal.ITIMER_PROF, service.SECONDS)
            reply = answer(request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            channel.sendall(message(reply))


def message(value: Any) -> bytes:
    """Encode a value as a message, which is the length of the JSON text followed by that text."""
    body = json.dumps(value).encode()
    return HEAD.pack(len(body)) + body


def bound_memory(more: int) -> None:
    """Limit the memory of this process to `more` bytes above the present use; if /proc is missing, do nothing."""
    import resource

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    most, hard = pages * resource.getpagesize() + more, resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
