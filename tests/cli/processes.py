"""Run `codespec` as a separate process, started with `python -m codespec`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

SECONDS = 120
TOKEN = "a-token-of-some-length"


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
