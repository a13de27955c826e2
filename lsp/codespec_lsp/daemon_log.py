"""The file that a started daemon writes to: begun anew with each, the former one beside it, and read for last words.

Knows files; the daemon bounds its log itself (`log_kb`).
"""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from typing import IO

from codespec.regular_file import read_regular

LOG_KB = 1000
MOST_BYTES = 16 * LOG_KB * 1000  # one of a version that did not bound it may be long


def open_log(log: Path) -> IO[bytes]:
    """An empty log, with the one before it as `.1`. Where a link lies in its place, what that names goes on. Raises
    OSError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # there is none, or it can't be kept: a daemon is worth more
        state = log.lstat()
        if stat.S_ISREG(state.st_mode) and state.st_size:
            log.replace(former(log))
    return log.open("a+b", buffering=0)  # readable, so that its newer half can be kept


def former(log: Path) -> Path:
    """Where the log before this one is."""
    return log.with_name(f"{log.name}.1")


def last_line(log: Path) -> str:
    """The last line of a log, as a rule one sentence with the mend; "" where there is none."""
    try:
        lines = read_regular(log, MOST_BYTES).decode("utf-8", "replace").strip().splitlines()
    except (OSError, ValueError):
        return ""
    return lines[-1].removeprefix("codespec: ") if lines else ""
