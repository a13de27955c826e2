"""Run one program under limits and report how it ended; `execution` starts it in a separate process.

A script for an isolated interpreter: it imports nothing of codespec. Its limits stop accidents (an endless loop, a full
memory, many files), not an attacker.

Arguments: the program's file, a secret word, CPU seconds, bytes of memory. It writes to stdout that word, how the
program ended, and whether the network was cut.
"""

from __future__ import annotations

import os
import resource
import sys

FILE_BYTES, OPEN_FILES = 1 << 20, 32
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # Linux's CLONE_NEWUSER and CLONE_NEWNET


def main() -> None:
    """Limit this process, run the program in it and exit at once with `os._exit`."""
    file, word, seconds, memory = sys.argv[1:]
    report = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    with open(file, encoding="utf-8") as opened:
        program = opened.read()
    network = "cut" if cut_network() else "open"
    set_limits(int(seconds), int(memory))
    del sys.argv[1:]
    ended = run(program)
    os.write(report, f"{word} {ended} {network}\n".encode())
    os._exit(0)


def run(program: str) -> str:
    """Run a program. Return `passed`, `wrong` if an assertion fails, or `error`."""
    try:
        exec(compile(program, "program.py", "exec"), {"__name__": "program"})
    except AssertionError:
        return "wrong"
    except BaseException:  # the program may raise anything, SystemExit included
        return "error"
    return "passed"


def cut_network() -> bool:
    """Move this process to a network namespace without any connection. Return False if the system forbids it."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).unshare(NEW_USER | NEW_NETWORK) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def set_limits(seconds: int, memory: int) -> None:
    """Set hard limits, which can't be raised again. The process limit does not apply to root."""
    # The signal of the soft CPU limit distinguishes a timeout from other ends.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    main()
