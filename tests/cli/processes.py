"""`codespec` as a process of its own, started as `python -m codespec` starts it. Knows streams and environments."""

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
    """Starts it; stdout and stderr are pipes unless told otherwise."""
    return start_python("-m", "codespec", *map(str, words), **settings)


def start_python(*words: str, **settings: Any) -> subprocess.Popen[bytes]:
    """Starts an interpreter in a user's environment: with buffers, as without PYTHONUNBUFFERED."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # Shells start what runs in the background with Ctrl-C ignored, and children inherit that.
    settings.setdefault("preexec_fn", partial(signal.signal, signal.SIGINT, signal.SIG_DFL))
    return subprocess.Popen([sys.executable, *words], **{**streams, "env": user_environment(), **settings})


def run(*words: str | Path, python: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs it to its end; `python` are the interpreter's own flags."""
    return subprocess.run(
        [sys.executable, *python, "-m", "codespec", *map(str, words)],
        env=user_environment(**environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
    )


def user_environment(**more: str) -> dict[str, str]:
    """The environment without what steers Python, and more variables. No bytecode is written: a process without room
    for files would leave a part of it, which every later import trips over.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **more}
