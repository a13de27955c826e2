"""Run HumanEval's tests on completed solutions: each program in a separate process, under limits.

`child` is the script that runs in the process.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from codespec.errors import ConfigError

CHILD = Path(__file__).with_name("child.py")
MAX_REPORT = 200  # bytes
Ended = Literal["passed", "wrong", "error", "timeout", "killed"]
ENDS: tuple[Ended, ...] = ("passed", "wrong", "error", "timeout", "killed")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one program: CPU seconds, wall-clock seconds, bytes of memory."""

    cpu_seconds: int = 5
    wall_seconds: float = 20.0
    memory: int = 1 << 30


@dataclass(frozen=True, slots=True)
class TaskTest:
    """The tests that a problem's solution must pass."""

    code: str
    entry_point: str

    def program(self, solution: str) -> str:
        """Return the solution, prompt included, followed by its tests."""
        return f"{solution}\n{self.code}\ncheck({self.entry_point})\n"


@dataclass(slots=True)
class Executor:
    """Runs programs and caches the results by program; `networks` collects whether their network was cut or open."""

    limits: Limits = field(default_factory=Limits)
    known: dict[str, Ended] = field(default_factory=dict)
    networks: set[str] = field(default_factory=set)

    def run(self, program: str) -> Ended:
        """Run a program and return how it ended."""
        if program not in self.known:
            self.known[program] = self._run(program)
        return self.known[program]

    def as_dict(self) -> dict[str, Any]:
        """Return the limits as plain JSON values."""
        return {
            "cpu_seconds": self.limits.cpu_seconds,
            "wall_seconds": self.limits.wall_seconds,
            "memory_bytes": self.limits.memory,
            "network": "cut" if self.networks == {"cut"} else "open",
            "processes": "not limited: root" if is_root() else "none of its own",
        }

    def _run(self, program: str) -> Ended:
        word = secrets.token_hex(16)
        # The report is outside the program's folder, so that the program can't see it.
        with tempfile.TemporaryDirectory(prefix="codespec-run-") as folder, tempfile.TemporaryFile() as report:
            Path(folder, "program.py").write_text(program, encoding="utf-8")
            numbers = (str(self.limits.cpu_seconds), str(self.limits.memory))
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(CHILD), "program.py", word, *numbers],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=report,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            code = _wait(process, self.limits.wall_seconds)
            report.seek(0)
            words = report.read(MAX_REPORT).decode("ascii", "replace").split()
        if len(words) == 3 and words[0] == word and words[1] in ENDS:
            self.networks.add(words[2])
            return next(end for end in ENDS if end == words[1])
        return "timeout" if code in (None, -signal.SIGXCPU) else "killed"


def demand_limits() -> None:
    """Raise ConfigError on a system that can't limit a process."""
    if importlib.util.find_spec("resource") is None:
        raise ConfigError("--execute needs a system that limits processes (Linux, macOS): leave it out here.")


def is_root() -> bool:
    """Return whether the user is root, whose processes the system does not count."""
    return os.geteuid() == 0


def read_tests(file: Path) -> dict[str, TaskTest]:
    """Return the tests of a HumanEval file by problem name. Raise ConfigError that names a line without tests."""
    try:
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        lines = [line for line in text.decode("utf-8").splitlines() if line.strip()]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"The prompts file {file} can't be read ({error}): check the path.") from error
    return dict(_test(file, number, line) for number, line in enumerate(lines, 1))


def _test(file: Path, number: int, line: str) -> tuple[str, TaskTest]:
    try:
        row = json.loads(line)
        return str(row.get("task_id", number)), TaskTest(str(row["test"]), str(row["entry_point"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file}, line {number}: --execute needs `test` and `entry_point` beside the solution: correct that line."
        ) from error


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code, or None if the time ran out. Kill the whole process group."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
