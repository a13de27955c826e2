"""Locks between processes, by files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def lock_file(file: Path, seconds: float = -1.0) -> Iterator[bool]:
    """Hold a lock file. Yield whether this process got the lock within `seconds` (negative: wait without a limit).

    Raises OSError if the file can't be created.
    """
    from filelock import FileLock, Timeout

    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(file, mode=0o600)
    with suppress(Timeout):
        lock.acquire(timeout=seconds)
    try:
        yield lock.is_locked
    finally:
        lock.release()
