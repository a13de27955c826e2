"""Run steps on a device through captured graphs of a few sizes, or eagerly if no graph is large enough.

Launching a small model's hundreds of kernels one by one takes longer than running them; a graph launches all at once.
A graph has a fixed size, so a step uses the smallest bucket that fits and pads the rest. Each bucket has its own
buffers for rows; the graphs share all other memory. On a CPU the same runner calls the model instead of replaying a
graph, with the same buffers and padding, so that everything except the capture is tested there.

A step that can be captured whole is one graph. Otherwise each attention call ends a graph and begins the next
(piecewise capture): attention reads the rows that one graph left at a fixed address and writes its result to the
address that the next graph reads. These addresses stay allocated for every layer and bucket, so piecewise graphs need
more memory (`models.memory_plan` computes how much).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from codespec.models.cache import KVCache
from codespec.models.cuda.device_rows import DeviceRows, RowBuffer, most_tiles, tiles_of
from codespec.models.rows import Rows

# Many small sizes, because padding dominates the cost of a step of few rows, and few large ones.
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
FIRST_REACH = 512
PROBE_BYTES = 64 << 20  # large enough to get its own segment, shared with no live tensor

Attention = Callable[[], Tensor]  # attends over the current content of fixed addresses
Compute = Callable[[DeviceRows, Tensor], Tensor]  # rows and the indices to keep -> logits [kept, vocabulary]
Progress = Callable[[int, int], None]  # captured graphs, all graphs
Graphs = Literal["none", "whole", "parts"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """A step of `rows` rows that see at most `reach` keys each."""

    rows: int
    reach: int


class Buckets:
    """The buckets of up to `most_rows` rows over a cache of `capacity` positions."""

    def __init__(self, most_rows: int, capacity: int) -> None:
        self.rows = tuple(rows for rows in ROWS if rows <= most_rows)
        self.reaches = reaches(capacity)

    def fit(self, rows: int, keys: int) -> Bucket | None:
        """Return the smallest bucket for `rows` rows that see at most `keys` keys; None if there are too many rows."""
        index = bisect_left(self.rows, rows)
        return Bucket(self.rows[index], self.reach(keys)) if index < len(self.rows) else None

    def reach(self, keys: int) -> int:
        """Return the smallest reach that covers `keys` keys."""
        return self.reaches[bisect_left(self.reaches, keys)]

    def largest_first(self) -> list[Bucket]:
        """Return all buckets, largest first: graphs share their memory, and the first one sizes it."""
        return [Bucket(rows, reach) for rows in reversed(self.rows) for reach in reversed(self.reaches)]


def reaches(capacity: int) -> tuple[int, ...]:
    """Return FIRST_REACH, its doublings below `capacity`, and `capacity`."""
    found, reach = [], FIRST_REACH
    while reach < capacity:
        found.append(reach)
        reach *= 2
    return (*found, capacity)


class CudaRecorder:
    """Records CUDA graphs that share a memory pool and a stream.

    One stream for all graphs saves memory, because torch keeps a matrix workspace and freed memory per stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def begin(self) -> torch.cuda.CUDAGraph:
        """Wait for earlier launches, then begin a graph."""
        torch.cuda.current_stream(self._device).synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        return graph

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Return a context in which captures may begin: a side stream, because the default one can't be captured."""
        usual = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(usual)
        with torch.cuda.stream(self._stream):
            yield
        usual.wait_stream(self._stream)


class PiecewiseGraph:
    """A captured step: one graph, or several with attention calls between them if attention can't be captured."""

    def __init__(self, recorder: CudaRecorder) -> None:
        self._recorder = recorder
        self._graph: torch.cuda.CUDAGraph | None = None  # being captured
        self._pieces: list[Callable[[], object]] = []

    def record(self, run: Callable[[], Tensor]) -> Tensor:
        """Capture the launches of `run` and return its tensor, at a fixed address. Raise RuntimeError on failure."""
        self._begin()
        try:
            return run()
        finally:
            self._end()

    def attend(self, attention: Attention) -> Tensor:
        """End the current graph, attend, and begin the next graph. Called inside `run`."""
        self._end()
        seen = attention()
        self._pieces.append(lambda: seen.copy_(attention()))
        self._begin()
        return seen

    def replay(self) -> None:
        """Run the step again on the current content of its buffers."""
        for piece in self._pieces:
            piece()

    def _begin(self) -> None:
        self._graph = self._recorder.begin()

    def _end(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:  # None after attention has failed
            graph.capture_end()
            self._pieces.append(graph.replay)


def recorder_for(device: torch.device) -> CudaRecorder | None:
    """Return the recorder that captures steps on a device; None on a CPU."""
    return CudaRecorder(device) if device.type == "cuda" else None


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which Triton launches on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def frees_memory(device: torch.device) -> bool:
    """Return whether torch still releases cached GPU memory.

    After a failed capture some versions still assume that a capture is running and release nothing. Freed memory then
    can't be reused for other sizes.
    """
    if device.type != "cuda":
        return True
    with on_device(device):
        torch.empty(PROBE_BYTES, dtype=torch.uint8, device=device)  # freed at once, and cached by torch
        kept = torch.cuda.memory_reserved(device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(device) < kept


class SharedLogits:
    """One buffer, shared by all graphs, for the last step's logits of up to `rows` rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._memory: Tensor | None = None  # [rows, vocabulary]

    def put(self, logits: Tensor) -> Tensor:
        """Copy a step's logits to the buffer and return the copy."""
        if self._memory is None:
            self._memory = logits.new_empty(self._rows, logits.shape[1])
        return self._memory[: len(logits)].copy_(logits)


class BucketStep:
    """The step of one bucket: its row buffer, and logits at a fixed address."""

    def __init__(self, buffer: RowBuffer, compute: Compute, shared: SharedLogits) -> None:
        self.buffer = buffer
        self._compute = compute
        self._shared = shared
        self._graph: PiecewiseGraph | None = None
        self._logits: Tensor | None = None

    def capture(self, recorder: CudaRecorder, whole: bool) -> None:
        """Capture a step of padding rows, whole or piecewise between attention calls. Raise RuntimeError if a layer
        can't be captured.
        """
        graph, rows = PiecewiseGraph(recorder), self.buffer.rows
        with recorder.side_stream():
            self.buffer.fill((), 1)
            self._run()  # warm-up: compiles kernels and allocates workspaces before the capture
            rows.attend = None if whole else graph.attend
            try:
                self._logits = graph.record(self._run)
            finally:
                rows.attend = None
        self._graph = graph

    def replay(self) -> Tensor:
        """Run the step in the buffer and return its logits, which the next step of any bucket overwrites."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._logits = self._run()
        assert self._logits is not None
        return self._logits

    def _run(self) -> Tensor:
        return self._shared.put(self._compute(self.buffer.rows, self.buffer.kept))


class StepRunner:
    """Runs batches over one cache, in attention tiles of `tile` positions.

    Buckets have up to `graph_rows` rows. `graphs` is how their steps were captured.
    """

    def __init__(self, compute: Compute, cache: KVCache, tile: int, device: torch.device, graph_rows: int) -> None:
        self.buckets = Buckets(graph_rows, cache.capacity)
        self.device = device
        self.graphs: Graphs = "none"
        self._compute = compute
        self._slots = cache.slots
        self._scratch = cache.slots
        self._tile = tile
        self._shared = SharedLogits(max(self.buckets.rows, default=0))
        self._steps: dict[Bucket, BucketStep] = {}

    def capture(self, no_parts: str, progress: Progress) -> str:
        """Capture each bucket's step whole, or piecewise around attention if that fails.

        `no_parts` is the reason not to capture piecewise, or "". Return "" if all steps were captured whole, else a
        clause that says how steps are launched instead, and why. Does nothing on a CPU.
        """
        problem = self._capture(True, progress)
        if not problem:
            return ""
        if not frees_memory(self.device):
            stuck = "torch frees no memory after that (graph_rows = 0 leaves it as it was)"
            return f"can't be captured whole ({problem}), and {stuck}: its steps are launched piece by piece"
        if no_parts:
            return f"can't be captured whole ({problem}), and {no_parts}: its steps are launched piece by piece"
        if not self._capture(False, progress):
            return f"can't be captured whole ({problem}): attention is launched between graphs of the rest"
        return f"can't be captured as graphs ({problem}): its steps are launched piece by piece"

    def _capture(self, whole: bool, progress: Progress) -> str:
        """Capture all steps or none. Return "" or the reason for the failure."""
        recorder, wanted = recorder_for(self.device), self.buckets.largest_first()
        if recorder is None or not wanted:
            return ""
        with on_device(self.device):
            for done, bucket in enumerate(wanted):
                progress(done, len(wanted))
                step = self._make(bucket)
                try:
                    step.capture(recorder, whole)
                except RuntimeError as error:
                    self._steps.clear()
                    return _reason(error)
                self._steps[bucket] = step
        self.graphs = "whole" if whole else "parts"
        return ""

    def run(self, batch: Sequence[Rows]) -> Tensor:
        """Run a batch and return a new tensor of float32 logits [sum of keep, vocabulary]."""
        count, keys = sum(len(rows.ids) for rows in batch), max(rows.end for rows in batch)
        kept = sum(rows.keep for rows in batch)
        assert keys <= self.buckets.reaches[-1], "a row beyond the slot's end would be written over another's"
        with on_device(self.device):
            step = self._step(self.buckets.fit(count, keys))
            if step is None:
                return self._run_as_is(batch, count, keys, kept)
            step.buffer.fill(batch, self._tile)
            return step.replay()[:kept].to(torch.float32, copy=True)

    def _run_as_is(self, batch: Sequence[Rows], count: int, keys: int, kept: int) -> Tensor:
        tiles = sum(1 for _ in tiles_of(batch, self._tile))
        buffer = RowBuffer(count, tiles, self.buckets.reach(keys), self._scratch, self.device)
        buffer.fill(batch, self._tile)
        return self._compute(buffer.rows, buffer.kept[: max(1, kept)])[:kept].float()

    def _step(self, bucket: Bucket | None) -> BucketStep | None:
        """Return the step of a bucket, or None on a GPU if it was not captured. On a CPU, create it on first use."""
        if bucket is not None and bucket not in self._steps and self.device.type != "cuda":
            self._steps[bucket] = self._make(bucket)
        return self._steps.get(bucket) if bucket is not None else None

    def _make(self, bucket: Bucket) -> BucketStep:
        tiles = most_tiles(bucket.rows, self._slots, self._tile)
        buffer = RowBuffer(bucket.rows, tiles, bucket.reach, self._scratch, self.device)
        return BucketStep(buffer, self._compute, self._shared)


def _reason(error: RuntimeError) -> str:
    """Return the reason for a failed capture as one line: the underlying error if ending the capture failed too."""
    cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
    return str(cause).partition("\n")[0] or type(cause).__name__
