"""A tensor-parallel group: the processes that share one model, their rendezvous, and calls to the workers.

The first process runs the engine. It starts the workers; each loads its share and repeats every call that the first
process makes on its model, so that all take part in each sum over the shares. The workers exit with the first process.
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store

from codespec.errors import ModelError, install_mend

LOOPBACK = "lo"  # no socket listens outside this machine; the rendezvous is a file, not a port
PATIENCE = timedelta(seconds=120)  # timeout for a process to start, and for each reply
IDLE = timedelta(days=365)  # timeout between two calls; the closed connection of a dead process is noticed at once
STOP = "stop"
GONE = "A process that holds a part of the model has ended ({reason}): read its message above and start again."
Call = tuple[str, tuple[Any, ...]]


@dataclass(slots=True)
class TensorParallelGroup:
    """One process's membership in a group of `size` processes.

    `control` carries calls; the default group carries the tensors of a forward. `folder` holds the rendezvous file.
    """

    rank: int
    size: int
    control: dist.ProcessGroup | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    folder: tempfile.TemporaryDirectory[str] | None = None

    def call(self, name: str, *arguments: Any) -> None:
        """Send the workers a call that this process is about to make. Raise ModelError if a worker has exited."""
        try:
            dist.broadcast_object_list([(name, arguments)], src=0, group=self.control)
        except RuntimeError as error:
            raise ModelError(GONE.format(reason=str(error).splitlines()[0])) from error

    def listen(self) -> Call:
        """Wait for the next call and return it; STOP if the first process has exited."""
        received: list[Any] = [None]
        try:
            dist.broadcast_object_list(received, src=0, group=self.control)
        except (RuntimeError, pickle.UnpicklingError):
            return STOP, ()
        call: Call = received[0]
        return call

    def close(self) -> None:
        """Stop the workers and wait for them. Idempotent."""
        if self.control is None:
            return
        if self.rank == 0:
            with suppress(ModelError):  # a worker that has exited needs no call
                self.call(STOP)
        for worker in self.workers:
            _end(worker)
        self.control = None
        dist.destroy_process_group()
        if self.folder is not None:
            self.folder.cleanup()


def start_group(size: int, device: str, command: Sequence[str], settings: bytes) -> TensorParallelGroup:
    """Start `size - 1` workers and wait until they have joined. Raise ModelError if one does not.

    A worker runs `command` with this Python, with its rank, the size, the rendezvous file and the device appended, and
    reads `settings` as one line from stdin.
    """
    if dist.is_initialized():
        raise ModelError("This process already holds a part of another model", "start another process for this one")
    if device == "cuda" and torch.cuda.device_count() < size:
        raise ModelError(
            f"{size} GPUs are needed and {torch.cuda.device_count()} are available", "lower tensor_parallel"
        )
    if importlib.util.find_spec("accelerate") is None:
        raise ModelError("tensor_parallel needs the package accelerate", install_mend("engine,parallel"))
    folder = tempfile.TemporaryDirectory(prefix="codespec-tensor-parallel-")
    rendezvous = str(Path(folder.name) / "store")
    store, workers = FileStore(rendezvous, size), []
    for rank in range(1, size):
        added = [str(rank), str(size), rendezvous, device]
        workers.append(subprocess.Popen([sys.executable, "-P", *command, *added], stdin=subprocess.PIPE))
        stdin = workers[-1].stdin
        assert stdin is not None
        stdin.write(settings + b"\n")
        stdin.flush()
    _wait(store, workers)
    group = _join(store, 0, size, device)
    group.workers, group.folder = workers, folder
    atexit.register(group.close)
    return group


def join_group(rank: int, size: int, rendezvous: str, device: str) -> TensorParallelGroup:
    """Join a group as a worker: the counterpart of `start_group`."""
    store = FileStore(rendezvous, size)
    store.set(_key(rank), "here")
    return _join(store, rank, size, device)


def _end(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    worker.stdin.close()
    worker.wait(PATIENCE.total_seconds())


def _wait(store: Store, workers: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while not store.check([_key(rank) for rank in range(1, len(workers) + 1)]):
        if any(worker.poll() is not None for worker in workers) or time.monotonic() > deadline:
            for worker in workers:
                worker.kill()
                _end(worker)
            raise ModelError(GONE.format(reason="it did not start"))
        time.sleep(0.02)


def _join(store: Store, rank: int, size: int, device: str) -> TensorParallelGroup:
    os.environ["LOCAL_RANK"] = str(rank)  # read by transformers
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", LOOPBACK)
    on_cuda = device.startswith("cuda")
    if on_cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_cuda else "gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)
    return TensorParallelGroup(rank, size, dist.new_group(backend="gloo", timeout=IDLE))


def _key(rank: int) -> str:
    return f"codespec/{rank}"
