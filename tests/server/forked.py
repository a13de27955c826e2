"""`codespec` in processes that are forked from one that has imported everything: an import is most of a start.

A forked process is one of its own, with its environment, streams, signals, memory and end, as `tests.cli.processes`
starts them; only the interpreter's start and the imports are not repeated. Tests of those start a real one.

Run as a module, it is the process that forks: it reads one request a line from a socket, with the file descriptors of
the new process's stdout, stderr and report. A keeper between the two writes the new process's id and exit code into the
report, and then ends.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, NoReturn, Self

from tests.cli.processes import SECONDS, TestedProcess, run, start, start_python, user_environment

ROOT = Path(__file__).resolve().parents[2]
MAX_REQUEST = 1 << 16
OWN = ("CODESPEC_", "XDG_", "PYTEST_")  # variables that no module reads when it is imported


class Forked:
    """The part of `subprocess.Popen` that tests of processes use."""

    def __init__(self, words: list[str], env: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        report, theirs = os.pipe()
        request = json.dumps({"words": words, "env": dict(env), "folder": os.getcwd()}).encode() + b"\n"
        socket.send_fds(forker()[0], [request], [stdout.fileno(), stderr.fileno(), theirs])
        os.close(theirs)
        self._report = os.fdopen(report, "rb", buffering=0)
        self.pid = int(self._report.readline())
        self.returncode: int | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None

    @classmethod
    def on_pipes(cls, words: list[str], env: Mapping[str, str]) -> Self:
        """Start a process whose output is read from pipes."""
        (out, their_out), (err, their_err) = os.pipe(), os.pipe()
        with os.fdopen(their_out, "wb") as stdout, os.fdopen(their_err, "wb") as stderr:
            process = cls(words, env, stdout, stderr)
        process.stdout, process.stderr = os.fdopen(out, "rb"), os.fdopen(err, "rb")
        return process

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, or None."""
        return self._wait(0)

    def wait(self, timeout: float = SECONDS) -> int:
        """Wait for the end; return the exit code."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("codespec", timeout)
        return code

    def communicate(self, timeout: float = SECONDS) -> tuple[bytes, bytes]:
        """Read both streams to their end and wait for the end of the process."""
        streams = {stream: bytearray() for stream in (self.stdout, self.stderr) if stream is not None}
        found = dict(streams)
        while streams:
            ready, _, _ = select.select(list(streams), [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired("codespec", timeout)
            for stream in ready:
                piece = stream.read1()  # type: ignore[attr-defined]
                streams[stream].extend(piece)
                if not piece:
                    del streams[stream]
        self.wait(timeout)
        out, err = (bytes(found.get(stream, b"")) if stream else b"" for stream in (self.stdout, self.stderr))
        return out, err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.kill()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()
        self._report.close()

    def _wait(self, seconds: float) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], seconds)[0]:
            self.returncode = int(self._report.readline())
        return self.returncode


def start_forked(
    *words: str | Path, env: Mapping[str, str] | None = None, output: IO[bytes] | None = None
) -> Forked | TestedProcess:
    """Start `codespec`, or with "-c" a program of Python; a real process if the environment needs one.

    stdout and stderr are pipes, or both `output`.
    """
    environment = user_environment() if env is None else env
    spelled = list(map(str, words))
    if not can_fork(environment):
        begin = start_python if spelled[0] == "-c" else start
        streams = {} if output is None else {"stdout": output, "stderr": output}
        return begin(*spelled, env=environment, **streams)  # type: ignore[return-value]
    return Forked.on_pipes(spelled, environment) if output is None else Forked(spelled, environment, output, output)


def run_forked(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `codespec` to its end."""
    given = user_environment(**environment)
    if not can_fork(given):
        return run(*words, **environment)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with Forked(list(map(str, words)), given, out, err) as process:
            code = process.wait()
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode())
    return subprocess.CompletedProcess(words, code, *texts)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a forked process is as one with this environment: not if it changes what an import has read."""
    if sys.platform != "linux":
        return False
    _, usual = forker()
    changed = (name for name in {*usual, *environment} if usual.get(name) != environment.get(name))
    return all(name.startswith(OWN) for name in changed)


@cache
def forker() -> tuple[socket.socket, dict[str, str]]:
    """Start the process that forks, which ends with this one; return the socket for requests and its environment."""
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    usual = user_environment()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.forked", str(theirs.fileno())],
        env={**usual, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    theirs.close()

    def end() -> None:
        own.close()
        process.wait()

    atexit.register(end)
    return own, usual


def serve(requests: socket.socket) -> None:
    """Fork a process for each request until the other side closes the socket."""
    import codespec_upstream.source  # noqa: F401
    import torch  # noqa: F401

    gc.freeze()
    keepers = set[int]()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST, 3)
        if not message:
            break
        keeper = os.fork()
        if keeper == 0:
            requests.close()
            keep(json.loads(message), *descriptors)
        for number in descriptors:
            os.close(number)
        keepers = {one for one in {*keepers, keeper} if os.waitpid(one, os.WNOHANG) == (0, 0)}
    for one in keepers:
        os.waitpid(one, 0)


def keep(request: Mapping[str, object], stdout: int, stderr: int, report: int) -> NoReturn:
    """Fork the process, and report its id and its exit code."""
    child = os.fork()
    if child == 0:
        os.close(report)
        become(request, stdout, stderr)
    os.close(stdout)
    os.close(stderr)
    os.write(report, f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(request: Mapping[str, object], stdout: int, stderr: int) -> NoReturn:
    """Run the command in this process."""
    from codespec.cli import main

    words, env, folder = request["words"], request["env"], request["folder"]
    assert isinstance(words, list) and isinstance(env, dict) and isinstance(folder, str)
    for number, own in ((stdout, 1), (stderr, 2)):
        os.dup2(number, own)
        os.close(number)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    code: object = 0
    try:
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = ["codespec", *words]
            code = main()
    except SystemExit as end:
        code = end.code
    leave(code)


def leave(code: object) -> NoReturn:
    """End the process like an interpreter, but leave its memory: freeing it would first copy all of the forker's."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
