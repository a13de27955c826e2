"""`python -P -m codespec_grammars.fork_server`: forks a parsing process for every socket that it receives on stdin.

A grammar is somebody else's C code that runs on somebody else's text: it can crash, loop and take all memory. So no
text is parsed in the process that needs the answer. A fork has the grammar loaded and is there in a millisecond, so one
that died is replaced at once. Each is bounded in processor time for a request and in memory, and ends with its socket.
Knows services (modules with a `Service` class, SECONDS and MEMORY); does not know what they answer.
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
from types import ModuleType
from typing import Any

from codespec_grammars.registry import load_grammar

ORDER = 256  # bytes of an order, filled up with spaces: a stream keeps no borders between shorter and longer ones
HEAD = struct.Struct("!I")  # the length of a message


def main() -> None:
    """Forks until the process that started it is gone."""
    import resource  # not on Windows, where nothing is forked

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # writing one down takes a second
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; this one ends with the one that asks
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets processes that ended
    control = socket.socket(fileno=os.dup(0))
    while True:
        data, channels, _, _ = socket.recv_fds(control, ORDER, 1)
        if not data:
            return
        name, language = json.loads(data)
        service = importlib.import_module(name)
        load_grammar(language)  # here, so that every later fork has it
        if os.fork() == 0:
            control.close()
            _serve(socket.socket(fileno=channels[0]), service, language)
            os._exit(0)
        os.close(channels[0])


def _serve(channel: socket.socket, service: ModuleType, language: str) -> None:
    """Answers until the socket is closed. Too much time or memory ends the process in the middle."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    bound_memory(service.MEMORY)
    answer: Callable[[Any], Any] = service.Service(language).answer
    with channel.makefile("rb") as requests:
        while head := requests.read(HEAD.size):
            request = json.loads(requests.read(HEAD.unpack(head)[0]))
            signal.setitimer(signal.ITIMER_PROF, service.SECONDS)
            reply = answer(request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            channel.sendall(message(reply))


def message(value: Any) -> bytes:
    """A value as it is sent in either direction."""
    body = json.dumps(value).encode()
    return HEAD.pack(len(body)) + body


def bound_memory(more: int) -> None:
    """Allows `more` bytes than are taken now. If the system does not report that, time is the only bound."""
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
