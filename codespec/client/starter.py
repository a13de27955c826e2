"""Start, watch and restart the daemon process that all editors of a user share.

A lock file in the user's state folder ensures that only one language server starts it. Each start begins an empty log
and keeps the previous one beside it. The daemon outlives this language server because other editors may use it.

The daemon runs in its own folder, which has no untrusted files. So relative paths in its command line and environment
are made absolute, based on this process's working folder. The file system is not checked: `owner/model` stays a model
name even if a folder with that path exists.
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
from collections.abc import Iterator, Mapping, Sequence
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
FOLDERS = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME")  # variables that the daemon reads
NO_FILES = ("", "auto", "none")
MAX_LOG_BYTES = 16 * LOG_KB * 1000  # no larger log is read
MAX_STARTS = 3
WITHIN = 600.0  # seconds in which MAX_STARTS are allowed
POLL_EVERY = 0.2
LISTEN_SECONDS = 60.0  # for a daemon to listen, which it does before it loads its models
END_SECONDS = 40.0  # for a daemon to end, after its open requests
EXIT_SECONDS = 2.0  # for an exiting process to release its memory
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows, SIGTERM kills
# Kept for the life of this process: a daemon may outlive the Starter that started it.
_started: list[subprocess.Popen[bytes]] = []


class Starter:
    """Starts a daemon if none answers. `command` starts it (None: never start one).

    While `replaces` is true, a daemon that this object started is replaced as soon as a signal kills it.
    """

    def __init__(self, client: DaemonClient, command: Sequence[str] | None, *, port: int) -> None:
        self._client = client
        self._command = command
        self._port = port
        self._starts: deque[float] = deque()
        self._ensuring: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.replaces = True

    async def ensure(self) -> None:
        """Return once a daemon listens; it may still be loading. Raises DaemonError with the reason if none does.

        Cancelling the wait does not cancel the start, because the next request needs the daemon too.
        """
        await asyncio.shield(self._begin())

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
        await self._start_or_wait()

    async def close(self) -> None:
        self.replaces = False
        if self._ensuring is not None:
            self._ensuring.cancel()
            await asyncio.gather(self._ensuring, return_exceptions=True)

    async def restart(self) -> None:
        """Restart the daemon, if an editor started it. A hanging daemon ignores SIGTERM, so it is killed.

        Raises DaemonError with the reason if it can't be restarted.
        """
        pid = self._read_pid()
        if self._command is None or not await asyncio.to_thread(self.serves, pid):
            what = f"The daemon at {self._client.url} was not started by an editor"
            raise DaemonError(what, "stop it and start it again yourself")
        self.forgive()
        hangs = (await self._client.health()).state == "silent"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _KILL if hangs else signal.SIGTERM)
        end = monotonic() + END_SECONDS
        while await asyncio.to_thread(self.serves, pid):
            if monotonic() > end:
                raise DaemonError(f"The daemon did not end within {END_SECONDS:.0f} s", f"see {self._file('log')}")
            await asyncio.sleep(POLL_EVERY)
        await self.ensure()

    def forgive(self) -> None:
        self._starts.clear()

    def _answers(self, health: Health, *, patient: bool = True) -> bool:
        """Return whether there is a daemon. Raises DaemonError if it can't serve.

        A starting daemon may be too busy to answer, so a silent one is an error only without `patient`.
        """
        if health.state == "foreign" or (health.state == "silent" and not patient):
            what = f"The program at {self._client.url} can't serve ({health.message})"
            raise DaemonError(health.fault or Fault("", what, "fix it, or set codespec.url"))
        return health.state in ("ready", "starting")

    async def _start_or_wait(self) -> None:
        """Start the daemon if this process gets the lock; otherwise wait until another process has started it."""
        end = monotonic() + LISTEN_SECONDS
        while True:
            with held(self._file("lock")) as mine:
                health = await self._client.health()
                if self._answers(health, patient=monotonic() <= end):
                    return
                if mine and health.state == "absent":
                    await self._start(end)
                    return
            self._check_time(end)
            await asyncio.sleep(POLL_EVERY)

    async def _start(self, end: float) -> None:
        await self._count_start()
        process = self._process = self._spawn()
        _started.append(process)
        self._watch(process)
        with contextlib.suppress(OSError):  # the only consequence: other editors can't restart this daemon
            self._file("pid").write_text(str(process.pid))
        while not self._answers(await self._client.health()):
            if process.poll() is not None:
                raise DaemonError(self._died("The daemon ended at once", process.returncode), again=1.0)
            self._check_time(end)
            await asyncio.sleep(POLL_EVERY)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Call `_replace` once the process has ended."""
        loop = asyncio.get_running_loop()

        def wait() -> None:
            process.wait()
            with contextlib.suppress(RuntimeError):  # the event loop is closed, so no replacement is needed
                loop.call_soon_threadsafe(self._replace, process)

        threading.Thread(target=wait, daemon=True).start()

    def _replace(self, process: subprocess.Popen[bytes]) -> None:
        """Replace a daemon that a signal killed, which saves the next request the start.

        A process that exits by itself was stopped, or would exit again, so it is not replaced before the next request.
        """
        if not (self.replaces and process is self._process and process.returncode < 0):
            return
        if self._ensuring is None or self._ensuring.done():
            self._begin()
        else:  # which may rely on an answer that the process sent before it was killed
            self._ensuring.add_done_callback(lambda _: self._replace(process))

    def _check_time(self, end: float) -> None:
        if monotonic() > end:
            raise DaemonError(f"The daemon did not listen within {LISTEN_SECONDS:.0f} s", f"see {self._file('log')}")

    async def _count_start(self) -> None:
        now = monotonic()
        while self._starts and now - self._starts[0] > WITHIN:
            self._starts.popleft()
        if len(self._starts) >= MAX_STARTS:
            while self._process and self._process.poll() is None and monotonic() < now + EXIT_SECONDS:
                await asyncio.sleep(POLL_EVERY)  # its port is freed shortly before it exits
            what = f"The daemon ended {MAX_STARTS} times, so it is not started again"
            raise DaemonError(self._died(what, self._process.returncode if self._process else None))
        self._starts.append(now)

    def _spawn(self) -> subprocess.Popen[bytes]:
        assert self._command is not None
        log, environment = self._file("log"), absolute_environment(os.environ)
        try:
            out = open_log(log)
        except OSError as error:
            what = f"The daemon's log {log} can't be made ({error.strerror})"
            raise DaemonError(what, "make that path writable") from error
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
                what = f"The daemon can't be started ({error.strerror})"
                raise DaemonError(what, "check the installation") from error

    def _read_pid(self) -> int:
        """Return the id of the last process that a language server started, or 0."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid  # the pid file may be missing because the disk was full
        try:
            return int(self._file("pid").read_text())
        except (OSError, ValueError):
            return 0

    def serves(self, pid: int) -> bool:
        """Return whether the process is a daemon for this port, rather than another program that reuses the id."""
        own = next((process for process in _started if process.pid == pid), None)
        if own is not None:
            return own.poll() is None
        return pid > 0 and f" serve --port {self._port} " in f"{command_line(pid)} "

    def _died(self, what: str, code: int | None) -> Fault:
        """Return a fault with the signal that killed the daemon, or the last line of its log, which often has a fix."""
        log = self._file("log")
        if code is not None and code < 0:
            return Fault("", f"{what} (signal {-code} killed it)", f"see its log {log}")
        if last := last_line(log):
            return Fault("", f"{what} ({quoted(last).what})", f"see its log {log}")
        return Fault("", f"{what} (exit code {code}, and nothing in its log {log})", "see whether its disk is full")

    def _file(self, kind: str) -> Path:
        return state_folder() / f"daemon-{self._port}.{kind}"


def command_line(pid: int) -> str:
    """Return the command line of a process, or "" if there is no such process or it can't be read."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = ["ps", "-p", str(pid), "-o", "args="]
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    return ""


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # otherwise asyncio logs it; a later request gets the same error


@contextlib.contextmanager
def held(file: Path) -> Iterator[bool]:
    """Try to lock a file, until this process exits; yield whether it got the lock. Raises DaemonError."""
    with contextlib.ExitStack() as stack:
        try:
            got = stack.enter_context(lock_file(file, 0))
        except OSError as error:
            raise DaemonError(f"The lock {file} can't be made ({error.strerror})", "make that path writable") from error
        yield got


def open_log(log: Path) -> IO[bytes]:
    """Open an empty log and keep the previous one as `.1`; append to a link's target. Raises OSError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # no previous log, or it can't be kept: start the daemon anyway
        state = log.lstat()
        if stat.S_ISREG(state.st_mode) and state.st_size:
            log.replace(previous_log(log))
    return log.open("a+b", buffering=0)  # readable, so that the daemon can keep its newer half


def previous_log(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")


def last_line(log: Path) -> str:
    """Return the last line of a log, usually a sentence with a fix, or ""."""
    try:
        lines = read_regular(log, MAX_LOG_BYTES).decode("utf-8", "replace").strip().splitlines()
    except (OSError, ValueError):
        return ""
    return lines[-1].removeprefix("codespec: ") if lines else ""


def serve_command(port: int, arguments: Sequence[str]) -> list[str]:
    """Return the command that starts the daemon. `-P` prevents imports from its working folder."""
    words = [sys.executable, "-P", "-m", "codespec", "serve", "--port", str(port)]
    return [*words, "--log-kb", str(LOG_KB), *arguments]


def with_absolute_paths(words: Sequence[str]) -> tuple[str, ...]:
    """Make the paths in a command line absolute. Raises DaemonError if the working folder is gone."""
    changed: list[str] = []
    flag = ""  # whose value is the next word
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
    """Make the paths in environment variables absolute. Raises DaemonError if the working folder is gone."""
    known = {name: "socket" for name in FOLDERS}
    known |= {f"CODESPEC_{name.upper()}": name for name in MODELS}
    known |= {f"CODESPEC_SERVE_{name.upper().replace('-', '_')}": name for name in FILES}
    return {name: _absolute(known[name], value) if name in known else value for name, value in environment.items()}


def is_path(model: str) -> bool:
    """Return whether a model is given by its path rather than by a catalogue name or `owner/model`."""
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
