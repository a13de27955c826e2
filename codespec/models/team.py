"""Several processes that hold one model together: how they find each other, and how the first tells the others what it
does. Knows processes and their messages; knows no model.

The first process runs the engine. The others are started by it, load their share, and repeat every call that it makes
on its model, so that all take part in each sum over the shares. They end when it ends.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store

from codespec.errors import ModelError, install_mend

LOOPBACK = "lo"  # nothing listens outside this machine; processes meet in a file, not at a port
PATIENCE = timedelta(seconds=120)  # for a process to start, and for each of its answers
IDLE = timedelta(days=365)  # between two calls; a process that is gone shows at once, its connection is closed
STOP = "stop"
GONE = "A process that holds a part of the model has ended ({reason}): see what it said above and start again."
Call = tuple[str, tuple[Any, ...]]


@dataclass(slots=True)
class Team:
    """One process's place among `size`. `control` carries calls, the default group the numbers of a forward."""

    rank: int
    size: int
    control: dist.ProcessGroup | None = None
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)
    place: tempfile.TemporaryDirectory[str] | None = None

    def call(self, name: str, *arguments: Any) -> None:
        """Tells the others to do what this process is about to do. ModelError if one of them is gone."""
        try:
            dist.broadcast_object_list([(name, arguments)], src=0, group=self.control)
        except RuntimeError as error:
            raise ModelError(GONE.format(reason=str(error).splitlines()[0])) from error

    def listen(self) -> Call:
        """The next call; STOP when the first process is gone."""
        heard: list[Any] = [None]
        try:
            dist.broadcast_object_list(heard, src=0, group=self.control)
        except (RuntimeError, pickle.UnpicklingError):
            return STOP, ()
        found: Call = heard[0]
        return found

    def close(self) -> None:
        """Ends the others and waits for them; a second time does nothing."""
        if self.control is None:
            return
        if self.rank == 0:
            with suppress(ModelError):  # whoever is gone needs no word
                self.call(STOP)
        for other in self.others:
            _end(other)
        self.control = None
        dist.destroy_process_group()
        if self.place is not None:
            self.place.cleanup()


@contextmanager
def closed_on_failure(team: Team) -> Iterator[None]:
    """Ends the team if what happens inside fails."""
    with ExitStack() as stack:
        stack.callback(team.close)
        yield
        stack.pop_all()


def start_team(size: int, device: str, command: Sequence[str], told: bytes) -> Team:
    """Starts `size - 1` processes and waits until they are there. ModelError if one does not come.

    They run `command` behind this Python, with their rank, the size, the meeting place and the device added to it, and
    read `told` from their input.
    """
    if dist.is_initialized():
        raise ModelError("This process holds a part of another model already: start another process for this one.")
    if device == "cuda" and torch.cuda.device_count() < size:
        raise ModelError(f"{size} GPUs are asked for and {torch.cuda.device_count()} are there: lower tensor_parallel.")
    if importlib.util.find_spec("accelerate") is None:
        raise ModelError(f"tensor_parallel needs the package accelerate: {install_mend('engine,parallel')}.")
    folder = tempfile.TemporaryDirectory(prefix="codespec-team-")
    meeting = str(Path(folder.name) / "store")
    store, others = FileStore(meeting, size), []
    for rank in range(1, size):
        added = [str(rank), str(size), meeting, device]
        others.append(subprocess.Popen([sys.executable, "-P", *command, *added], stdin=subprocess.PIPE))
        stdin = others[-1].stdin
        assert stdin is not None
        stdin.write(told + b"\n")
        stdin.flush()
    _wait(store, others)
    team = _join(store, 0, size, device)
    team.others, team.place = others, folder
    atexit.register(team.close)
    return team


def join_team(rank: int, size: int, meeting: str, device: str) -> Team:
    """The side of a process that was started."""
    store = FileStore(meeting, size)
    store.set(_key(rank), "here")
    return _join(store, rank, size, device)


def _end(other: subprocess.Popen[bytes]) -> None:
    assert other.stdin is not None
    other.stdin.close()
    other.wait(PATIENCE.total_seconds())


def _wait(store: Store, others: Sequence[subprocess.Popen[bytes]]) -> None:
    ends = time.monotonic() + PATIENCE.total_seconds()
    while not store.check([_key(rank) for rank in range(1, len(others) + 1)]):
        if any(other.poll() is not None for other in others) or time.monotonic() > ends:
            for other in others:
                other.kill()
                _end(other)
            raise ModelError(GONE.format(reason="it did not start"))
        time.sleep(0.02)


def _join(store: Store, rank: int, size: int, device: str) -> Team:
    os.environ["LOCAL_RANK"] = str(rank)  # where transformers looks for it
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", LOOPBACK)
    on_cuda = device.startswith("cuda")
    if on_cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_cuda else "gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)
    return Team(rank, size, dist.new_group(backend="gloo", timeout=IDLE))


def _key(rank: int) -> str:
    return f"codespec/{rank}"
