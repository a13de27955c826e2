"""A daemon for a benchmark: a process of its own on a free port, with settings that depend on nobody's habits.

Knows processes, settings files and the daemon's first lines; sends it nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from codespec.config import PREFIX, EngineConfig
from codespec.errors import ConfigError

LISTENING, READY = "codespec: listening on ", "codespec: ready"
END_SECONDS = 30


@contextmanager
def own_daemon(config: EngineConfig, queue: int) -> Iterator[str]:
    """The address of a daemon that is ready, until the block ends. ConfigError says why there is none.

    What earlier sessions learned of the pair is left out, so that a figure does not depend on the machine's past.
    """
    with tempfile.TemporaryDirectory(prefix="codespec-bench-") as folder:
        settings, complaints = Path(folder) / "settings.toml", Path(folder) / "stderr"
        settings.write_text(_toml({**asdict(config), "learn": False}, queue), encoding="utf-8")
        with complaints.open("wb") as stderr:
            words = [sys.executable, "-P", "-m", "codespec", "serve", "--port", "0", "--config", str(settings)]
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=_environment(), text=True
            )
        try:
            yield _until_ready(process, complaints)
        finally:
            _end(process)


def _until_ready(process: subprocess.Popen[str], complaints: Path) -> str:
    assert process.stdout is not None
    address = ""
    for line in process.stdout:
        if line.startswith(LISTENING + "http"):
            address = line.removeprefix(LISTENING).strip()
        if line.startswith(READY):
            return address
    process.wait()
    told = complaints.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
    raise ConfigError(f"The daemon did not start: {told[-1].removeprefix('codespec: ')}")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _environment() -> dict[str, str]:
    """Without our own variables: the settings file says everything."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def _toml(settings: dict[str, Any], queue: int) -> str:
    """Texts, numbers, truths and a flat table: JSON spells those as TOML does. No audits: they run in idle time."""
    lines = [f"{name} = {_spell(value)}" for name, value in settings.items() if value != {}]
    return "\n".join([*lines, "[serve]", f"queue = {queue}", "audit_every = 0", ""])


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_spell(name)} = {_spell(part)}" for name, part in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
