"""Run `codespec` as a separate process: started with `python -m codespec`, or forked from one with its imports made."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

SECONDS = 120
TOKEN = "a-token-of-some-length"
LIGHT = ("codespec.cli", "codespec.cli.daemon_checks", "asyncio", "filelock", "tqdm")  # no torch
ENGINE = ("codespec.engine.engine", "codespec.backends.native.model", "transformers.models.llama.modeling_llama")
# Receives jobs with their stdin, stdout and stderr, and runs each in a fork, which ends like an interpreter.
FORK_SERVER = """
import gc, importlib, json, os, runpy, socket, sys, traceback
asked = socket.socket(fileno=int(sys.argv[1]))
for name in sys.argv[2:]:
    importlib.import_module(name)
gc.freeze()
while True:
    message, files, _, _ = socket.recv_fds(asked, 1 << 20, 3)
    if not message:
        sys.exit()
    child = os.fork()
    if not child:
        break
    for file in files:
        os.close(file)
    _, status, spent = os.wait4(child, 0)
    seconds = spent.ru_utime + spent.ru_stime
    asked.send(json.dumps([os.waitstatus_to_exitcode(status), seconds, spent.ru_maxrss << 10]).encode())
asked.close()
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
job = json.loads(message)
os.environ.clear()
os.environ.update(job["environment"])
os.chdir(job["folder"])
sys.argv = ["codespec", *job["words"]]
code = 0
try:
    exec(job["before"])
    runpy.run_module("codespec", run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code
except BaseException:
    traceback.print_exc()
    code = 1
if isinstance(code, str):
    print(code, file=sys.stderr)
    code = 1
sys.stdout.flush()
os._exit(code or 0)  # an interpreter's own end would touch, and so copy, all memory of the imports
"""


def start(*words: str | Path, **settings: Any) -> subprocess.Popen[bytes]:
    """Start `codespec`; stdout and stderr are pipes unless set otherwise."""
    return start_python("-m", "codespec", *map(str, words), **settings)


class TestedProcess(subprocess.Popen[bytes]):
    """A process that does not outlive a failed test, which would wait for it forever."""

    __test__ = False

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, trace)


def start_python(*words: str, **settings: Any) -> subprocess.Popen[bytes]:
    """Start an interpreter in a user's environment, with buffered output."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # Shells start background processes with Ctrl-C ignored, and children inherit that.
    settings.setdefault("preexec_fn", partial(signal.signal, signal.SIGINT, signal.SIG_DFL))
    return TestedProcess([sys.executable, *words], **{**streams, "env": user_environment(), **settings})


def run(*words: str | Path, python: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `codespec` to its end; `python` holds the interpreter's own flags."""
    return subprocess.run(
        [sys.executable, *python, "-m", "codespec", *map(str, words)],
        env=user_environment(**environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
    )


def user_environment(**more: str) -> dict[str, str]:
    """Return the environment without Python's own variables, and with `more`.

    Bytecode is not written: a process without disk space would leave a partial file, on which every later import fails.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **more}


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended: its processor time in seconds and its peak memory in bytes, with its own children's."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    memory: int


def fork(*words: str | Path, modules: tuple[str, ...] = LIGHT, before: str = "", **environment: str) -> Ended:
    """Run `codespec` like `run`, in a fork of a process that has imported `modules`: most of a start is imports.

    `before` is code that runs first. Python's own variables and the imports themselves are not under test here.
    """
    server, near = _fork_server(modules)
    job = {"words": [str(word) for word in words], "before": before, "folder": os.getcwd()}
    with open(os.devnull) as nothing, TemporaryFile() as out, TemporaryFile() as err:
        message = json.dumps({**job, "environment": user_environment(**environment)}).encode()
        socket.send_fds(near, [message], [nothing.fileno(), out.fileno(), err.fileno()])
        try:
            code, seconds, memory = json.loads(near.recv(1000))
        except TimeoutError:
            server.kill()
            raise
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode())
    return Ended(code, *texts, seconds, memory)


@cache
def _fork_server(modules: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process that `fork` uses, once in a test run; it ends with it."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.settimeout(SECONDS)
    with far:
        words = ("-c", FORK_SERVER, str(far.fileno()), *modules)
        server = start_python(*words, stdout=None, stderr=None, pass_fds=(far.fileno(),))

    def end() -> None:
        near.close()
        server.wait(SECONDS)

    atexit.register(end)
    return server, near
