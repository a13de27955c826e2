"""Runs one program under limits and reports how it ended; `quality_execution` starts it as a process of its own.

A script for an isolated interpreter: it imports nothing of codespec. Its limits stop accidents (an endless loop, a full
memory, many files), not somebody who wants to break out. Knows no tests and no models.

Arguments: the program's file, a word that nobody else knows, CPU seconds, bytes of memory. What it writes to stdout is
that word, how the program ended, and whether the network was cut; no more than the program's own end decides.
"""

from __future__ import annotations

import os
import resource
import sys

FILE_BYTES, OPEN_FILES = 1 << 20, 32
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # Linux's CLONE_NEWUSER and CLONE_NEWNET


def main() -> None:
    """Limits this process, runs the program in it and ends at once, whatever the program left behind."""
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
    """`passed`, `wrong` where a test says so, or `error`."""
    try:
        exec(compile(program, "program.py", "exec"), {"__name__": "program"})
    except AssertionError:
        return "wrong"
    except BaseException:  # whatever a program raises, SystemExit too, is how it ends
        return "error"
    return "passed"


def cut_network() -> bool:
    """Moves this process to a network of its own that has no way out; false where the system does not let it."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).unshare(NEW_USER | NEW_NETWORK) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def set_limits(seconds: int, memory: int) -> None:
    """From here on nothing raises them again. A root user's processes are not counted by the system."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # the first one's signal tells it from other ends
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
