"""One daemon process for all editors: found where one answers, started where none does, restarted a few times
when it dies. Its log begins empty at each start, and the former one lies beside it.

Knows processes, their log and a lock file in the user's state folder. A started daemon outlives this language server:
other editors use it.
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
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from codespec.regular_file import read_regular
from codespec.user_folders import state_folder
from codespec_lsp.daemon_client import DaemonClient, DaemonError, Health
from codespec_lsp.serve_command import LOG_KB, absolute_environment

MOST_LOG_BYTES = 16 * LOG_KB * 1000  # the log of a version that did not bound it may be long
MOST_STARTS = 3
WITHIN = 600.0  # seconds in which MOST_STARTS may be made
POLL_EVERY = 0.2
LISTEN_SECONDS = 60.0  # it listens before it loads
END_SECONDS = 40.0  # open requests finish first
EXIT_SECONDS = 2.0  # of a process whose memory is given back
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows' SIGTERM does it
# Kept as long as this process lives: what was started may outlive whoever started it.
_started: list[subprocess.Popen[bytes]] = []


class Starter:
    """Makes sure that a daemon answers; `command` is None where none may be started. While `replaces` is true, a daemon
    that it started is replaced as soon as a signal kills it."""

    def __init__(
        self,
        client: DaemonClient,
        command: Sequence[str] | None,
        *,
        port: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._command = command
        self._port = port
        self._clock = clock
        self._starts: deque[float] = deque()
        self._ensuring: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.replaces = True

    async def ensure(self) -> None:
        """Returns once a daemon listens, which may still be loading. Raises DaemonError that says why there is none.
        Cancelling the wait does not stop the start: the next request needs it too."""
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
            mend = f"run `codespec serve --port {self._port}`, or set codespec.startDaemon"
            raise DaemonError(f"No daemon answers at {self._client.url}: {mend}.")
        await self._start_or_wait()

    async def close(self) -> None:
        """Stops waiting; what was started goes on."""
        self.replaces = False
        if self._ensuring is not None:
            self._ensuring.cancel()
            await asyncio.gather(self._ensuring, return_exceptions=True)

    async def restart(self) -> None:
        """Ends the daemon, if an editor started it, and starts it again. One that hangs ignores other signals, so it is
        killed. Raises DaemonError that says why it can\'t be restarted."""
        pid = self._read_pid()
        if self._command is None or not await asyncio.to_thread(self.serves, pid):
            raise DaemonError(
                f"The daemon at {self._client.url} was not started by an editor: stop it and start it again yourself."
            )
        self.forgive()
        hangs = (await self._client.health()).state == "silent"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _KILL if hangs else signal.SIGTERM)
        end = self._clock() + END_SECONDS
        while await asyncio.to_thread(self.serves, pid):
            if self._clock() > end:
                raise DaemonError(f"The daemon did not end within {END_SECONDS:.0f} s: see {self._file('log')}.")
            await asyncio.sleep(POLL_EVERY)
        await self.ensure()

    def forgive(self) -> None:
        """Forgets earlier starts: the user asked for another try."""
        self._starts.clear()

    def _answers(self, health: Health, *, patient: bool = True) -> bool:
        """Whether there is a daemon. One that is starting may be too busy to answer: who is `patient` waits for it."""
        if health.state == "foreign" or (health.state == "silent" and not patient):
            if health.error:
                raise DaemonError(health.error)
            raise DaemonError(
                f"What answers at {self._client.url} can't serve ({health.message}): mend it, or set codespec.url."
            )
        return health.state in ("ready", "starting")

    async def _start_or_wait(self) -> None:
        """Whoever holds the lock starts it. The others wait for that, and all wait while something is silent."""
        end = self._clock() + LISTEN_SECONDS
        while True:
            with held(self._file("lock")) as mine:
                health = await self._client.health()
                if self._answers(health, patient=self._clock() <= end):
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
        with contextlib.suppress(OSError):  # no other editor can restart this daemon then, and that is all
            self._file("pid").write_text(str(process.pid))
        while not self._answers(await self._client.health()):
            if process.poll() is not None:
                raise DaemonError(f"The daemon ended at once: {self._last_words(process.returncode)}", again=1.0)
            self._check_time(end)
            await asyncio.sleep(POLL_EVERY)
        self._watch(process)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Has the process replaced if a signal kills it, so that the next request finds one that loads or is ready.
        One that exits by itself was meant to, or would do so again: the next request finds out."""
        loop = asyncio.get_running_loop()

        def wait() -> None:
            process.wait()
            with contextlib.suppress(RuntimeError):  # nobody is left who would need another
                loop.call_soon_threadsafe(self._ended, process)

        threading.Thread(target=wait, daemon=True).start()

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        if self.replaces and process is self._process and process.returncode < 0:
            self._begin()

    def _check_time(self, end: float) -> None:
        if self._clock() > end:
            raise DaemonError(f"The daemon did not listen within {LISTEN_SECONDS:.0f} s: see {self._file('log')}.")

    async def _count_start(self) -> None:
        now = self._clock()
        while self._starts and now - self._starts[0] > WITHIN:
            self._starts.popleft()
        if len(self._starts) >= MOST_STARTS:
            why = self._last_words(await self._exit_code())
            raise DaemonError(f"The daemon ended {MOST_STARTS} times, so it is not started again: {why}")
        self._starts.append(now)

    async def _exit_code(self) -> int | None:
        """What the last process ended with. Its port is free a moment before that is known."""
        if self._process is None:
            return None
        end = self._clock() + EXIT_SECONDS
        while self._process.poll() is None and self._clock() < end:
            await asyncio.sleep(POLL_EVERY)
        return self._process.returncode

    def _spawn(self) -> subprocess.Popen[bytes]:
        assert self._command is not None
        log, environment = self._file("log"), absolute_environment(os.environ)
        try:
            out = open_log(log)
        except OSError as error:
            raise DaemonError(f"The daemon's log {log} can't be made ({error.strerror}): free that place.") from error
        with out:
            try:
                return subprocess.Popen(
                    list(self._command),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    cwd=log.parent,  # not the folder that is open: what lies there may be anybody's
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise DaemonError(f"The daemon can't be started ({error.strerror}): check the installation.") from error

    def _read_pid(self) -> int:
        """The id of the process that a language server started last; 0 for none."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid  # the disk may have been too full to write it down
        try:
            return int(self._file("pid").read_text())
        except (OSError, ValueError):
            return 0

    def serves(self, pid: int) -> bool:
        """Whether that process is a daemon for this port, and not another one that got its id since."""
        own = next((process for process in _started if process.pid == pid), None)
        if own is not None:
            return own.poll() is None
        return pid > 0 and f" serve --port {self._port} " in f"{command_line(pid)} "

    def _last_words(self, code: int | None) -> str:
        """What killed it, or the last line of its log: as a rule one sentence that says what to do."""
        log = self._file("log")
        if code is not None and code < 0:
            why = f"signal {-code} killed it"
        else:
            why = last_line(log) or f"exit code {code}, and nothing in its log: see whether its disk is full"
        return f"{why} (the log is {log})"

    def _file(self, kind: str) -> Path:
        return state_folder() / f"daemon-{self._port}.{kind}"


def command_line(pid: int) -> str:
    """The command line of a process; "" where there is none, or the system does not tell."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = ["ps", "-p", str(pid), "-o", "args="]
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    return ""


def _retrieve(task: asyncio.Task[None]) -> None:
    """Retrieves its error for asyncio; whoever waits gets it too, and else the next request runs into it again."""
    if not task.cancelled():
        task.exception()


@contextlib.contextmanager
def held(file: Path) -> Iterator[bool]:
    """Whether this process got the lock. It ends with the block or with the process, however that ends. Raises
    DaemonError where there can be no lock file."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = file.open("a+b")
    except OSError as error:
        raise DaemonError(f"The lock {file} can't be made ({error.strerror}): free that place.") from error
    with opened:
        yield _lock(opened)


def _lock(file: IO[bytes]) -> bool:
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def open_log(log: Path) -> IO[bytes]:
    """An empty log, with the one before it as `.1`. A link in its place stays, and what it names is appended to. Raises
    OSError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # there is none, or it can't be kept: the daemon matters more
        state = log.lstat()
        if stat.S_ISREG(state.st_mode) and state.st_size:
            log.replace(former(log))
    return log.open("a+b", buffering=0)  # readable, so that its newer half can be kept


def former(log: Path) -> Path:
    """Where the log before this one is."""
    return log.with_name(f"{log.name}.1")


def last_line(log: Path) -> str:
    """The last line of a log, as a rule one sentence that says what to do; "" where there is none."""
    try:
        lines = read_regular(log, MOST_LOG_BYTES).decode("utf-8", "replace").strip().splitlines()
    except (OSError, ValueError):
        return ""
    return lines[-1].removeprefix("codespec: ") if lines else ""
