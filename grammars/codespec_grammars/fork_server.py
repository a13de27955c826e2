"""`python -P -m codespec_grammars.fork_server`: forks a parsing process for every socket that it receives on stdin.

A grammar is third-party C code that runs on untrusted text: it can crash, loop or exhaust memory. So text is never
parsed in the process that needs the result. A fork has the grammar loaded and is ready in a millisecond, so one that
died is replaced at once. Each fork has limits on memory and on CPU time per request, and exits when its socket closes.
A service is named `module:Class`; the class is made for a language, answers requests, and has the limits `SECONDS` and
`MEMORY`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from codespec_grammars.registry import load_grammar

ORDER = 256  # bytes of an order, padded with spaces because a stream socket has no message boundaries
HEAD = struct.Struct("!I")  # length prefix of a message


def main() -> None:
    """Fork on request until the parent process is gone."""
    import resource  # not available on Windows, which can't fork

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # writing a core dump takes a second
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the whole group; this exits with its parent
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps exited children
    control = socket.socket(fileno=os.dup(0))
    while True:
        data, channels, _, _ = socket.recv_fds(control, ORDER, 1)
        if not data:
            return
        name, language = json.loads(data)
        module, _, kind = name.partition(":")
        service = getattr(importlib.import_module(module), kind)
        load_grammar(language)  # before the fork, so that later forks have it too
        if os.fork() == 0:
            control.close()
            _serve(socket.socket(fileno=channels[0]), service, language)
            os._exit(0)
        os.close(channels[0])


def _serve(channel: socket.socket, service: Any, language: str) -> None:
    """Answer requests until the socket is closed. Exceeding the time or memory limit kills the process."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
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
    """Encode a value as a message, for either direction."""
    body = json.dumps(value).encode()
    return HEAD.pack(len(body)) + body


def bound_memory(more: int) -> None:
    """Limit memory to `more` bytes above current use. Without /proc there is no memory limit."""
    import resource

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    most, hard = pages * resource.getpagesize() + more, resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
