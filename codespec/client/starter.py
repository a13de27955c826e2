"""Start, watch and restart the daemon process that all editors of a user share.

A lock file in the user's state folder ensures that only one language server starts a daemon. Each start opens an empty
log and renames the previous log. The daemon outlives the language server because other editors may use the daemon.

The daemon's working folder is the state folder, which has no untrusted files. Before a start, relative paths in the
daemon's command line and environment are made absolute. `owner/model` names a model on the hub even if a folder with
that path exists.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import IO

from codespec.api.limits import HUB_ID
from codespec.client.daemon_client import DaemonClient, Health
from codespec.errors import DaemonError, Fault, quoted
from codespec.files import lock_file, read_regular
from codespec.user_folders import state_folder

LOG_KB = 1000
FILES = ("config", "token-file", "upstream-token-file", "socket", "keys", "metrics-token-file")
MODELS = ("target", "drafter")
FOLDERS = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME")  # environment variables
NO_FILES = ("", "auto", "none")
MAX_LOG_BYTES = 16 * LOG_KB * 1000  # no larger log is read
MAX_STARTS = 3
START_WINDOW_S = 600.0  # seconds in which MAX_STARTS are allowed
POLL_EVERY = 0.2
LISTEN_SECONDS = 60.0  # until a new daemon listens, before it loads its models
END_SECONDS = 40.0  # until a daemon has finished its open requests and exited
EXIT_SECONDS = 2.0  # until an exiting process has released its memory
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows, SIGTERM kills
# A daemon may outlive its Starter. The `Popen` object of a process is needed to reap it.
_started: list[subprocess.Popen[bytes]] = []


class Starter:
    """Starts a daemon if no daemon answers. `command` is the daemon's command line (None: never start one)."""

    def __init__(self, client: DaemonClient, command: Sequence[str] | None, *, port: int) -> None:
        self._client = client
        self._command = command
        self._port = port
        self._starts: deque[float] = deque()
        self._ensuring: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.replaces = True  # whether a daemon that a signal has killed is replaced at once

    async def ensure(self) -> None:
        """Wait until a daemon listens, starting one if necessary. Raises DaemonError if no daemon can be started."""
        await asyncio.shield(self._begin())  # the next request needs the daemon too

    def _begin(self) -> asyncio.Task[None]:
        if self._ensuring is None or self._ensuring.done():
            self._ensuring = asyncio.get_running_loop().create_task(self._ensure())
            self._ensuring.add_done_callback(_retrieve)
        return self._ensuring

    async def _ensure(self) -> None:
        if self._answers(await self._client.health()):
            return
        if self._command is None:
            fix = f"run `codespec serve --port {self._port}`, or set codespec.startDaemon"
            raise DaemonError(f"No daemon answers at {self._client.url}", fix)
        end = monotonic() + LISTEN_SECONDS
        lock = self._file("lock")
        while True:
            try:
                with lock_file(lock, 0) as mine:  # another process that has the lock starts the daemon
                    health = await self._client.health()
                    if self._answers(health, patient=monotonic() <= end):
                        return
                    if mine and health.state == "absent":
                        await self._start(end)
                        return
            except OSError as error:
                why = error.strerror
                raise DaemonError(f"The lock file {lock} can't be opened ({why})", f"make {lock} writable") from error
            self._check_time(end)
            await asyncio.sleep(POLL_EVERY)

    async def close(self) -> None:
        self.replaces = False
        if self._ensuring is not None:
            self._ensuring.cancel()
            await asyncio.gather(self._ensuring, return_exceptions=True)

    async def restart(self) -> None:
        """Restart a daemon that an editor started. Raises DaemonError, also if another program started the daemon."""
        pid = self._read_pid()
        if self._command is None or not await asyncio.to_thread(self.serves, pid):
            fix = "stop that daemon and start it again yourself"
            raise DaemonError(f"The daemon at {self._client.url} was not started by an editor", fix)
        self.forgive()
        hangs = (await self._client.health()).state == "silent"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _KILL if hangs else signal.SIGTERM)  # a daemon that hangs would ignore SIGTERM
        end = monotonic() + END_SECONDS
        while await asyncio.to_thread(self.serves, pid):
            if monotonic() > end:
                raise DaemonError(f"The daemon did not exit within {END_SECONDS:.0f} s", f"see {self._file('log')}")
            await asyncio.sleep(POLL_EVERY)
        await self.ensure()

    def forgive(self) -> None:
        self._starts.clear()

    def _answers(self, health: Health, *, patient: bool = True) -> bool:
        """Return whether a daemon listens. Raises DaemonError if the program at the address can't serve."""
        hangs = health.state == "silent" and not patient  # while it starts, a daemon may be too busy to answer
        if health.state == "foreign" or hangs:
            what = f"The program at {self._client.url} can't serve completions ({health.message})"
            raise DaemonError(health.fault or Fault("", what, "stop that program, or correct codespec.url"))
        return health.state in ("ready", "starting")

    async def _start(self, end: float) -> None:
        await self._count_start()
        process = self._process = self._spawn()
        _started.append(process)
        self._watch(process)
        with contextlib.suppress(OSError):  # the only consequence: other editors can't restart this daemon
            self._file("pid").write_text(str(process.pid))
        while not self._answers(await self._client.health()):
            if process.poll() is not None:
                raise DaemonError(self._died("The daemon exited immediately", process.returncode), retry_after=1.0)
            self._check_time(end)
            await asyncio.sleep(POLL_EVERY)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Call `_replace` after the daemon process has exited."""
        loop = asyncio.get_running_loop()

        def wait() -> None:
            process.wait()
            with contextlib.suppress(RuntimeError):  # the event loop is closed, so no replacement is needed
                loop.call_soon_threadsafe(self._replace, process)

        threading.Thread(target=wait, daemon=True).start()

    def _replace(self, process: subprocess.Popen[bytes]) -> None:
        """Replace a daemon that a signal killed, so that the next request need not wait for the start."""
        if not (self.replaces and process is self._process and process.returncode < 0):
            return  # a daemon that exited by itself was stopped by a user, or would exit again
        if self._ensuring is None or self._ensuring.done():
            self._begin()
        else:  # the current check may have got its answer before the process was killed
            self._ensuring.add_done_callback(lambda _: self._replace(process))

    def _check_time(self, end: float) -> None:
        if monotonic() > end:
            raise DaemonError(f"The daemon's port did not open in {LISTEN_SECONDS:.0f} s", f"see {self._file('log')}")

    async def _count_start(self) -> None:
        now = monotonic()
        while self._starts and now - self._starts[0] > START_WINDOW_S:
            self._starts.popleft()
        if len(self._starts) >= MAX_STARTS:
            while self._process and self._process.poll() is None and monotonic() < now + EXIT_SECONDS:
                await asyncio.sleep(POLL_EVERY)  # a process frees its port shortly before it exits
            what = f"The daemon exited {MAX_STARTS} times, so it is not started again"
            raise DaemonError(self._died(what, self._process.returncode if self._process else None))
        self._starts.append(now)

    def _spawn(self) -> subprocess.Popen[bytes]:
        assert self._command is not None
        log, environment = self._file("log"), absolute_environment(os.environ)
        try:
            out = open_log(log)
        except OSError as error:
            why = error.strerror
            raise DaemonError(f"The daemon's log {log} can't be opened ({why})", f"make {log} writable") from error
        with out:
            try:
                return subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    cwd=log.parent,  # not the open folder, whose files are untrusted
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise DaemonError(f"The daemon can't be started ({error.strerror})", "reinstall codespec") from error

    def _read_pid(self) -> int:
        """Return the id of the last daemon process that a language server started, or 0."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid  # if the disk was full, there is no pid file
        try:
            return int(self._file("pid").read_text())
        except (OSError, ValueError):
            return 0

    def serves(self, pid: int) -> bool:
        """Return whether the process with this id is a daemon for this port, and not a process that reuses the id."""
        own = next((process for process in _started if process.pid == pid), None)
        if own is not None:
            return own.poll() is None
        return pid > 0 and f" serve --port {self._port} " in f"{command_line(pid)} "

    def _died(self, what: str, code: int | None) -> Fault:
        # The last line of the log often contains a fix.
        log = self._file("log")
        if code is not None and code < 0:
            return Fault("", f"{what} (signal {-code} killed it)", f"see the daemon's log {log}")
        if last := last_line(log):
            return Fault("", f"{what} ({quoted(last).what})", f"see the daemon's log {log}")
        return Fault("", f"{what} (exit code {code}, and its log {log} is empty)", "check whether the disk is full")

    def _file(self, kind: str) -> Path:
        return state_folder() / f"daemon-{self._port}.{kind}"


def command_line(pid: int) -> str:
    """Return the command line of a process, or "" if the process does not exist or can't be inspected."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = ["ps", "-p", str(pid), "-o", "args="]
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    return ""


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # otherwise asyncio logs the error, which a later request reports anyway


def open_log(log: Path) -> IO[bytes]:
    """Open an empty log and rename the old one (`.1`). If the log is a link, append to its target. Raises OSError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # there is no previous log, or it can't be renamed
        state = log.lstat()
        if stat.S_ISREG(state.st_mode) and state.st_size:
            log.replace(log.with_name(f"{log.name}.1"))
    return log.open("a+b", buffering=0)  # readable, because a daemon that shortens its log copies the newer half


def last_line(log: Path) -> str:
    """Return the last line of a log without the prefix "codespec: ", or "" if the log is empty or unreadable."""
    try:
        lines = read_regular(log, MAX_LOG_BYTES).decode("utf-8", "replace").strip().splitlines()
    except (OSError, ValueError):
        return ""
    return lines[-1].removeprefix("codespec: ") if lines else ""


def serve_command(port: int, arguments: Sequence[str]) -> list[str]:
    """Build the daemon's command line. `-P` prevents imports from the daemon's working folder."""
    words = [sys.executable, "-P", "-m", "codespec", "serve", "--port", str(port)]
    return [*words, "--log-kb", str(LOG_KB), *arguments]


def with_absolute_paths(words: Sequence[str]) -> tuple[str, ...]:
    """Make the paths in a command line absolute. Raises DaemonError if the working folder no longer exists."""
    changed: list[str] = []
    flag = ""  # the flag before this word, if the word is its value and may be a path
    for word in words:
        name, equals, value = word.partition("=")
        known = name.removeprefix("--") if name.startswith("--") and name[2:] in (*FILES, *MODELS) else ""
        if flag:
            changed.append(_absolute(flag, word))
            flag = ""
        elif equals and known:
            changed.append(f"{name}={_absolute(known, value)}")
        else:
            changed.append(word)
            flag = known
    return tuple(changed)


def absolute_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Make the paths in environment variables absolute. Raises DaemonError if the working folder no longer exists."""
    known = {name: "socket" for name in FOLDERS}
    known |= {f"CODESPEC_{name.upper()}": name for name in MODELS}
    known |= {f"CODESPEC_SERVE_{name.upper().replace('-', '_')}": name for name in FILES}
    return {name: _absolute(known[name], value) if name in known else value for name, value in environment.items()}


def is_path(model: str) -> bool:
    """Return whether the name of a model is a path, not a catalogue name or an `owner/model` on the hub."""
    if model.startswith(".") or model.lower().endswith(".gguf"):
        return True
    return ("/" in model or "\\" in model) and not HUB_ID.fullmatch(model)


def _absolute(flag: str, value: str) -> str:
    named = not is_path(value) if flag in MODELS else value in NO_FILES
    if named or os.path.isabs(value) or value.startswith("~"):
        return value
    try:
        return os.path.abspath(value)
    except OSError as error:
        raise DaemonError(
            f"{value} is relative to a folder that no longer exists ({error.strerror})", "give an absolute path"
        ) from error
