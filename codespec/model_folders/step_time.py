"""Measure once the time per token of a 1.5 B model in int8 on this machine, in a separate process, and record it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import inf, isfinite
from pathlib import Path
from typing import Any

from codespec.catalogue.disk import Say
from codespec.json_store import load, write
from codespec.model_folders.machine import processor_key
from codespec.user_folders import cache_folder

MEASURE = (sys.executable, "-P", "-m", "codespec.models.step_speed")
LONGEST = 120.0  # seconds, including the import of torch
MOST_RECORDS = 20


def read_step() -> float | None:
    """Return the milliseconds per token; infinity if int8 does not run here, None if not measured with this torch."""
    return _read().get(_key())


def write_step(milliseconds: float) -> None:
    """Record a measurement for this processor and this torch. Raises OSError."""
    records = {**_read(), _key(): milliseconds}
    recent = dict(list(records.items())[-MOST_RECORDS:])
    write(_file(), {key: value if isfinite(value) else None for key, value in recent.items()})


def measure_step(say: Say) -> float | None:
    """Return the result of `read_step`, after a measurement of some seconds if there is none yet.

    If the measurement fails, returns None and reports the reason to `say`.
    """
    known = read_step()
    if known is not None or find_spec("torch") is None:
        return known
    say("measuring once how fast this machine computes a token (some seconds)")
    try:
        done = subprocess.run(
            MEASURE, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=LONGEST, check=False,
        )  # fmt: skip
        failed = (done.stderr.strip().splitlines() or ["it says nothing"])[-1][:160] if done.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        failed = str(error)[:160]
    if failed:
        say(f"the speed of this machine could not be measured ({failed})")
    return read_step()


def _read() -> dict[str, float]:
    """Return all measurements, or none if the file is unreadable; the next measurement replaces it."""
    return load(_file(), _convert, "the measured speed", "it is measured again", []) or {}


def _convert(content: Mapping[str, Any]) -> dict[str, float]:
    return {key: inf if value is None else float(value) for key, value in content.items()}


def _file() -> Path:
    return cache_folder() / "step_time.json"


def _key() -> str:
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return f"{processor_key()}; torch {torch}"
