"""Create a Unix socket at a path for one daemon and one user.

A socket in use is kept; a stale one is replaced. Daemons that start at the same path take turns, so that none removes a
socket that another has just created.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from codespec.errors import ConfigError

PROBE_SECONDS = 1.0  # for the holder of the socket to accept a connection
TURN_SECONDS = 5.0  # to wait for other daemons that create sockets in the same folder
POLL_SECONDS = 0.02


@asynccontextmanager
async def claimed(path: Path, backlog: int) -> AsyncIterator[socket.socket]:
    """Yield a socket that listens at `path`.

    It must be served within the block, while no other daemon probes it. Raise ConfigError if the path is in use; raise
    OSError if the socket can't be created.
    """
    async with _turn(path.parent):
        _clear(path)
        yield _bind(path, backlog)


@asynccontextmanager
async def _turn(folder: Path) -> AsyncIterator[None]:
    """Hold a lock on the folder, without a lock file. Raise ConfigError if it stays locked."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(int(TURN_SECONDS / POLL_SECONDS)):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(POLL_SECONDS)
        else:
            raise ConfigError(f"Another process keeps {folder} locked", "choose another folder for --socket")
        yield
    finally:
        os.close(handle)


def _clear(path: Path) -> None:
    """Remove a stale socket. Raise ConfigError for anything else at the path."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{path} exists and is no socket", "choose another path for --socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:  # no listener; any other error means a listener that does not accept
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise ConfigError(f"The socket {path} is in use", "stop the other daemon, or choose another with --socket")


def _bind(path: Path, backlog: int) -> socket.socket:
    """Bind and listen at once: a bound socket that does not listen looks like a dead daemon's."""
    own = socket.socket(socket.AF_UNIX)
    former = os.umask(0o177)
    try:
        own.bind(str(path))
        own.listen(backlog)
    except OSError:
        own.close()
        raise
    finally:
        os.umask(former)
    return own
