"""Wait for the end of the editor's process.

Usually its pipe closes with it, but another process may have inherited the pipe and hold it open.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

EVERY = 3.0  # seconds between looks, on systems that don't report the end


async def wait_for_end(pid: int) -> None:
    """Return once the process has ended, at once if there is none with this id."""
    if sys.platform == "linux":
        await _wait_by_descriptor(pid)
    else:
        runs = _windows_process(pid) if sys.platform == "win32" else lambda: _runs(pid)
        while runs():
            await asyncio.sleep(EVERY)


async def _wait_by_descriptor(pid: int) -> None:
    """Wait on a descriptor of the process, which a zombie's end makes readable too. Linux only."""
    assert sys.platform == "linux"
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(process, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


def _runs(pid: int) -> bool:
    """Return whether a process exists. On Windows, `os.kill` would end it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


if sys.platform == "win32":

    def _windows_process(pid: int) -> Callable[[], bool]:
        """Return a function that reports whether the process runs. Its handle keeps the id from being used again."""
        import ctypes

        synchronize, access_denied, still_running = 0x00100000, 5, 0x102
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.OpenProcess.restype = ctypes.c_void_p
        handle = ctypes.c_void_p(kernel.OpenProcess(synchronize, False, pid))
        if not handle:
            denied = ctypes.get_last_error() == access_denied
            return lambda: denied
        return lambda: bool(kernel.WaitForSingleObject(handle, 0) == still_running)
