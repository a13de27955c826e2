"""pace.py PID: lets a process run for a little processor time in each period, until this one is told to end.

Processor time and not time on the clock: on a busy machine a timer comes late, and a fast daemon writes a whole text
in the meantime.
"""

import contextlib
import os
import signal
import sys
import time

RUN = 0.0015  # seconds of processor time; a round of the starter pair takes about one millisecond
AT_MOST = 0.05  # seconds on the clock: a daemon that waits for something uses no processor time
PERIOD = 0.15  # seconds


def main(pid: int) -> None:
    """Stops and continues `pid`, and leaves it running at the end."""
    clock = (~pid << 3) | 2  # a process's processor clock by its id: see clock_getcpuclockid
    with contextlib.suppress(PermissionError):  # it is stopped later, then, where the machine is busy
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    os.kill(pid, signal.SIGSTOP)
    print("stopped", flush=True)
    try:
        while True:
            time.sleep(PERIOD)
            os.kill(pid, signal.SIGCONT)
            began, used = time.monotonic(), time.clock_gettime(clock)
            while time.clock_gettime(clock) < used + RUN and time.monotonic() < began + AT_MOST:
                time.sleep(1e-4)
            os.kill(pid, signal.SIGSTOP)
    except OSError:
        return  # it has ended
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


main(int(sys.argv[1]))
