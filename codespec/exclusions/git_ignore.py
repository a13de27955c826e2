"""Determine which files git ignores, with one `git check-ignore` process for each recently used repository.

Git reads the repository's own configuration, which may be hostile. Therefore git runs with options and an environment
that prevent it from starting programs configured by the repository (monitor, hook, pager, transport), from writing, and
from reading other repositories. Git itself refuses repositories owned by other users. The time, memory and number of
git processes are limited. A git process exits when its pipes close, so it does not outlive its parent process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from codespec.files import Unreadable

GIT_TIMEOUT_S = 5.0  # maximum time for one answer of git
RETRY_S = 30.0  # seconds without git after it refused a repository or was too slow
MEMORY = 1 << 30  # bytes of address space, on Linux
MAX_PROCESSES = 4
MAX_SEEN = 4096  # pattern files that one process reads before it is replaced
_SAFE = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}", "safe.bareRepository=explicit", "protocol.allow=never")
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_FLUSH": "1",
    "LC_ALL": "C",
}
_KEPT = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
_GLOB = frozenset("*?[\\")
_APPLE = "/usr/bin/git"  # opens a dialog if the developer tools are missing
_TOOLS = ("/Library/Developer/CommandLineTools", "/Applications/Xcode.app")
State = tuple[int, ...] | None
# errno values that mean that a path leads to no file.
NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL}


def find_git() -> str:
    """Return the path of git, or "" if git is not installed. Relative folders in PATH are ignored."""
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    found = shutil.which("git", path=os.pathsep.join(folders)) or ""
    if os.path.dirname(found) not in folders:
        return ""
    missing = sys.platform == "darwin" and found == _APPLE and not any(map(os.path.exists, _TOOLS))
    return "" if missing else found


class GitIgnore:
    """The git processes of all repositories. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._git: str | None = None
        self._repositories: dict[Path, _Repository] = {}

    def source(self, top: Path, file: Path) -> str | None:
        """Return the path of the ignore file that excludes `file`, "" if there is none, or None if git can't answer.

        The path from the repository at `top` to `file` must not contain a symbolic link. Blocks. Raises OSError if an
        ignore file can't be read, and TimeoutError if git is too slow.
        """
        with self._lock:
            if self._git is None:
                self._git = find_git()
            if not self._git:
                return None
            repository = self._repositories.pop(top, None) or _Repository(self._git, top)
            self._repositories[top] = repository
            while len(self._repositories) > MAX_PROCESSES:
                self._repositories.pop(next(iter(self._repositories))).close()
        return repository.source(file)

    def close(self) -> None:
        with self._lock:
            while self._repositories:
                self._repositories.popitem()[1].close()


class _Repository:
    """A repository and its git process, which is replaced when a file that the process may have read changes."""

    def __init__(self, git: str, top: Path) -> None:
        self._git, self._top = git, top
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._around: tuple[Path, ...] = ()  # index, configuration and ignore files outside the working tree
        self._seen: dict[Path, State] = {}
        self._rests_until = 0.0
        self._was_slow = False

    def source(self, file: Path) -> str | None:
        with self._lock:
            if time.monotonic() >= self._rests_until:
                try:
                    return self._ask(file)
                except Unreadable:
                    raise
                except (OSError, subprocess.SubprocessError) as error:
                    self._was_slow = isinstance(error, TimeoutError | subprocess.TimeoutExpired)
                    self._end()
                    self._rests_until = time.monotonic() + RETRY_S
            if self._was_slow:
                raise TimeoutError
            return None

    def close(self) -> None:
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _ask(self, file: Path) -> str:
        name = file.relative_to(self._top).as_posix()
        words = ["check-ignore", "-z", "--verbose", "--non-matching", "--stdin"]
        self._around = self._around or tuple(self._find_around())
        above = [folder / ".gitignore" for folder in file.parents if folder.is_relative_to(self._top)]
        read = {path: state_of(path) for path in (*self._around, *above)}
        question = b"./" + os.fsencode(name) + b"\0"
        if _GLOB & set(name):  # without --no-index, git would also match tracked files with this name as a pattern
            return _source(self._run([*words, "--no-index"], question))
        if len(self._seen) > MAX_SEEN or any(self._seen.get(path, state) != state for path, state in read.items()):
            self._end()
        if self._process is None:
            self._process = subprocess.Popen(**self._call(words), stdin=subprocess.PIPE, bufsize=0)
            if sys.platform == "linux":
                import resource

                with contextlib.suppress(OSError):
                    resource.prlimit(self._process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
        self._seen |= read
        return _source(self._answer(self._process, question))

    def _answer(self, process: subprocess.Popen[bytes], question: bytes) -> bytes:
        """Return git's answer: four fields, each followed by NUL. Raises TimeoutError, and OSError if git exits."""
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(GIT_TIMEOUT_S, stop)
        timer.daemon = True
        timer.start()
        answer = b""
        try:
            process.stdin.write(question)
            while answer.count(b"\0") < 4:
                piece = process.stdout.read(1 << 16)
                if not piece:
                    raise TimeoutError if late.is_set() else BrokenPipeError
                answer += piece
        finally:
            timer.cancel()
        return answer

    def _find_around(self) -> Iterator[Path]:
        """Yield the files outside the working tree that affect git's answers."""
        words = ["rev-parse", "--path-format=absolute"]
        for name in ("index", "info/exclude", "config", "config.worktree"):
            words += ["--git-path", name]
        yield from map(Path, os.fsdecode(self._run(words)).splitlines())
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "git"
        excludes = os.fsdecode(self._run(["config", "--type=path", "--get", "core.excludesFile"])).rstrip("\n")
        yield from (home / "config", Path.home() / ".gitconfig", self._top / excludes if excludes else home / "ignore")

    def _run(self, words: Sequence[str], question: bytes = b"") -> bytes:
        """Return the output of a git command. For the commands used here, exit code 1 means that there is no result."""
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            **self._call(words), input=question, timeout=GIT_TIMEOUT_S, check=False
        )
        if done.returncode not in (0, 1):
            raise BrokenPipeError
        return done.stdout

    def _call(self, words: Sequence[str]) -> dict[str, Any]:
        kept = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith("GIT_")}
        return {
            "args": [self._git, "--no-pager", *(word for each in _SAFE for word in ("-c", each)), *words],
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
            "cwd": self._top,
            "env": kept | _ENVIRONMENT | {"GIT_CEILING_DIRECTORIES": str(self._top.parent)},
        }

    def _end(self) -> None:
        process, self._process = self._process, None
        self._around, self._seen = (), {}
        if process is not None:
            with process:  # closes the pipes and waits
                process.kill()


def _source(answer: bytes) -> str:
    """Parse the ignore file from git's answer (file, line, pattern, path); return "" if no file excludes the path."""
    fields = answer.split(b"\0")
    if len(fields) < 4 or fields[2].startswith(b"!"):
        return ""
    return os.fsdecode(fields[0])


def state_of(path: Path) -> State:
    """Return a value that changes whenever an ignore file changes, or None if there is no file. Raises Unreadable."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a device or a pipe would block git
            raise Unreadable("not a regular file")
    except OSError as error:
        if error.errno in NOT_THERE:
            return None
        raise unfollowable(path, error) from error
    except ValueError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def unfollowable(path: Path, error: OSError) -> Unreadable:
    """Return an error that says why an ignore file can't be read."""
    why = str(error) if isinstance(error, Unreadable) else error.strerror or type(error).__name__
    return Unreadable(f"{path} can't be read ({why})")
