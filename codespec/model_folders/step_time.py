"""Measure once the time per token of a 1.5 B model in int8 on this machine, in a separate process, and record it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from codespec.catalogue.disk import Say
from codespec.json_store import Kept, digest, write
from codespec.model_folders.machine import processor_key
from codespec.user_folders import cache_folder

MEASURE = (sys.executable, "-P", "-m", "codespec.startup.step_speed")
LONGEST = 120.0  # seconds, including the import of torch


def read_step() -> float | None:
    """Return the milliseconds per token; infinity if int8 does not run here, None if not measured with this torch."""
    return _kept().load([])


def write_step(milliseconds: float) -> None:
    """Keep a measurement for this processor and this torch. Raises OSError."""
    kept = _kept()
    write(kept.file, kept.spell(milliseconds))


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
            timeout=LONGEST, check=True,
        )  # fmt: skip
        write_step(float(done.stdout.split()[-1]))
        return read_step()
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["it says nothing"])[-1]
    except (OSError, LookupError, ValueError, subprocess.SubprocessError) as error:
        reason = str(error)
    say(f"the speed of this machine could not be measured ({reason[:160]})")
    return None


def _kept() -> Kept[float]:
    """Return the file for the measurement. Its name depends only on facts that are known without torch."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    file = cache_folder() / "step_time" / f"{digest((processor_key(), torch))}.json"
    return Kept(
        file, "time of a token", lambda content: float(content["milliseconds"]), lambda ms: {"milliseconds": str(ms)}
    )  # a string, because JSON has no infinity
