"""A step in parts that a device replays, and attention between them where it can't be recorded with the rest.

Where a whole step can be recorded it is one part. Else each call of attention ends a part and begins the next: its
rows, which one part left at a fixed address, are attended over by launching the kernels, and what was seen is put where
the next part reads it. Those addresses stay taken for every layer and size of step, so graphs in parts hold more
memory (models.memory_plan says how much). Knows graphs and the order of calls; knows no rows and no layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor

Attention = Callable[[], Tensor]  # attends over what stands at fixed addresses now


class Graph(Protocol):
    """What was launched between its beginning and its end, to be launched again at once."""

    def capture_end(self) -> None:
        """Records no more. RuntimeError if something can't be recorded."""
        ...

    def replay(self) -> None:
        """Launches it."""
        ...


class Recorder(Protocol):
    """Records what is launched on a device."""

    def begin(self) -> Graph:
        """A graph that takes in what is launched from now on."""
        ...

    def aside(self) -> AbstractContextManager[None]:
        """Inside it graphs may be begun."""
        ...


class CudaRecorder:
    """CUDA graphs, which share their memory and the stream they are recorded on: torch keeps a matrix workspace and
    freed memory for each stream apart.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def begin(self) -> Graph:
        """Behind all that was launched before."""
        torch.cuda.current_stream(self._device).synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        return graph

    @contextmanager
    def aside(self) -> Iterator[None]:
        """On a stream of its own: the one that everything else uses can't be recorded."""
        usual = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(usual)
        with torch.cuda.stream(self._stream):
            yield
        usual.wait_stream(self._stream)


class Parts:
    """A step that was recorded: graphs, and between them attention."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._graph: Graph | None = None  # under way
        self._plays: list[Callable[[], object]] = []

    def record(self, run: Callable[[], Tensor]) -> Tensor:
        """Records what `run` launches; returns its tensor, whose address stays. RuntimeError if it can't be."""
        self._begin()
        try:
            return run()
        finally:
            self._end()

    def attend(self, attention: Attention) -> Tensor:
        """Called inside `run`: ends a part, attends, begins another."""
        self._end()
        seen = attention()
        self._plays.append(lambda: seen.copy_(attention()))
        self._begin()
        return seen

    def replay(self) -> None:
        """The same again, of what stands in memory now."""
        for play in self._plays:
            play()

    def _begin(self) -> None:
        self._graph = self._recorder.begin()

    def _end(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:  # none where attention itself has failed
            graph.capture_end()
            self._plays.append(graph.replay)
