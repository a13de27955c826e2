"""Run a benchmark's own daemon with isolated settings, and measure it with HTTP clients, one or many in a closed loop.

Depends on processes, settings files, HTTP and events, not on models.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from codespec.api.config import EngineConfig
from codespec.api.settings import PREFIX
from codespec.client.connections import ProvenConnections
from codespec.client.daemon_client import STATS, DaemonClient
from codespec.client.starter import last_line, serve_command
from codespec.errors import Absent, ConfigError, DaemonError
from codespec.store.machine import processor
from codespec.user_folders import read_token

SECONDS = 600.0  # between two events: a long prompt may have to be prefilled first
MAX = 1024  # concurrent requests
PHASES = ("prefill_ms", "draft_ms", "retokenize_ms", "verify_ms", "other_ms")
Body = Mapping[str, Any]
LISTENING, READY = "codespec: listening on ", "codespec: ready"
END_SECONDS = 30


@dataclass(slots=True)
class Reply:
    """One completion: its text, the text of each round, the final event, and seconds since the request."""

    text: str = ""
    rounds: list[str] = field(default_factory=list)
    done: Mapping[str, Any] = field(default_factory=dict)
    first: float | None = None  # until the first piece of text; None if there was none
    total: float = 0.0

    @property
    def stats(self) -> Mapping[str, Any]:
        """Return the engine's statistics."""
        stats: Mapping[str, Any] = self.done["stats"]
        return stats

    @property
    def beyond_steps_ms(self) -> float:
        """Return the client's wait minus the engine's steps for this request."""
        busy: float = sum(self.stats[name] for name in PHASES)
        return self.total * 1000 - busy

    @property
    def beyond_engine_ms(self) -> float:
        """Return the client's wait minus all of the engine's work for this request: prompt building and steps."""
        admitting: float = self.stats["admit_ms"]
        return self.beyond_steps_ms - admitting

    @property
    def wire_ms(self) -> float:
        """Return the client's wait before its request arrived and after its text was finished."""
        inside: float = self.stats["total_ms"]
        return self.total * 1000 - inside


@dataclass(frozen=True, slots=True)
class Pass:
    """All replies of a closed loop, in the order of the bodies, and its duration in seconds."""

    replies: Sequence[Reply]
    seconds: float


class Client:
    """A client of one daemon."""

    def __init__(self, client: DaemonClient) -> None:
        self._client = client

    @property
    def daemon(self) -> DaemonClient:
        """Return the client of the daemon's endpoints."""
        return self._client

    async def facts(self) -> dict[str, Any]:
        """Return the daemon's model, slots, context and mode."""
        try:
            props, health = await self._client.report("/props"), await self._client.report("/health")
            settings, mode = props["default_generation_settings"], health["mode"]
            names = {"model": props["model_alias"], "slots": props["total_slots"], "context": settings["n_ctx"]}
        except (Absent, KeyError, TypeError) as error:
            raise ConfigError(f"No codespec daemon answers there ({type(error).__name__}): check --url.") from error
        except DaemonError as error:
            raise ConfigError(f"The daemon can't be measured: {error}") from error
        return {**names, "mode": mode}

    async def edit_facts(self) -> dict[str, Any]:
        """Return the format of the daemon's prompts for edits, "" if there is none, and their budget in tokens."""
        about = (await self._client.report(STATS))["daemon"]
        return {name: about[name] for name in ("edit_format", "prompt_budget")}

    async def complete(self, body: Body) -> Reply:
        """Read one completion to its end. Raise DaemonError if the daemon refuses or fails."""
        reply, begun = Reply(), time.perf_counter()
        async for name, data in self._client.events(body):
            _take(reply, name, data, time.perf_counter() - begun)
        reply.total = time.perf_counter() - begun
        if not reply.done:
            raise Absent("The daemon broke off in the middle of a reply", "see its log, and begin again")
        return reply

    async def closed_loop(self, bodies: Sequence[Body], together: int, advance: Callable[[], None]) -> Pass:
        """Send all bodies, `together` of them at a time."""
        replies, left, begun = [Reply()] * len(bodies), iter(enumerate(bodies)), time.perf_counter()

        async def work() -> None:
            for number, body in left:
                replies[number] = await self.complete(body)
                advance()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(together):
                    group.create_task(work())
        except ExceptionGroup as errors:  # all clients fail in the same way
            raise errors.exceptions[0] from errors
        return Pass(replies, time.perf_counter() - begun)


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[Client]:
    """Yield a client of `address`, with the token in the daemon's environment variable if it is set."""
    try:
        connections = ProvenConnections(address, read_token(""), "check --url", patience=SECONDS, most=MAX)
    except ValueError as error:
        raise ConfigError(f"{address} is not an address: give one such as http://127.0.0.1:8765.") from error
    async with DaemonClient(connections) as client:
        yield Client(client)


def _take(reply: Reply, name: str, data: Any, seconds: float) -> None:
    if name == "text":
        reply.first = seconds if reply.first is None else reply.first
        reply.text += data["text"]
    elif name == "round":
        reply.rounds.append(data["accepted_text"] + data["target_text"])
    elif name == "done":
        reply.done = data


@contextmanager
def own_daemon(config: EngineConfig, queue: int, **serve: str) -> Iterator[str]:
    """Run a daemon until the block ends, and yield its address once ready. Raise ConfigError if it fails to start.
    `serve` are further settings of its table `[serve]`.

    It ignores what earlier sessions learned about the pair, so that figures do not depend on the machine's past.
    """
    with tempfile.TemporaryDirectory(prefix="codespec-bench-") as folder:
        settings, log = Path(folder) / "settings.toml", Path(folder) / "stderr"
        settings.write_text(_toml({**asdict(config), "learn": False}, {"queue": queue, **serve}), encoding="utf-8")
        # Without codespec's own variables: the settings file holds everything.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        with log.open("wb") as stderr:
            words, pipe = serve_command(0, ["--config", str(settings)]), subprocess.PIPE
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=stderr, env=environment, text=True
            )
        try:
            yield _until_ready(process, log)
        finally:
            _end(process)


def run_facts(load: float) -> dict[str, Any]:
    """Return the date, the machine with its load before (`load`) and after the run, and the versions."""
    machine = {"cores": os.cpu_count(), "processor": processor().label, "load": [load, os.getloadavg()[0]]}
    versions = {"python": platform.python_version(), "torch": version("torch")}
    return {"date": date.today().isoformat(), "machine": machine, "versions": versions}


def _until_ready(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    address = ""
    for line in process.stdout:
        if line.startswith(LISTENING + "http"):
            address = line.removeprefix(LISTENING).strip()
        if line.startswith(READY):
            return address
    process.wait()
    raise ConfigError(f"The daemon did not start: {last_line(log) or 'it printed no error'}")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _toml(settings: Mapping[str, Any], serve: Mapping[str, Any]) -> str:
    """Return the settings as TOML. JSON and TOML spell strings, numbers and booleans alike.

    Audits are off, because they run when the daemon is idle.
    """
    lines = [f"{name} = {_spell(value)}" for name, value in settings.items() if value != {}]
    return "\n".join([*lines, "[serve]", *(f"{name} = {_spell(value)}" for name, value in serve.items()), ""])


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_spell(name)} = {_spell(part)}" for name, part in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
