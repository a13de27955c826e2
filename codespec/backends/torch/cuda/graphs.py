"""Run steps on a device through captured graphs of a few sizes, or eagerly if no graph is large enough.

Launching a small model's hundreds of kernels one by one takes longer than running them; a graph launches all of them at
once. A graph has a fixed size, so a step is padded to the smallest bucket that fits. Each bucket has its own row
buffers; the graphs share all other memory. On a CPU the same runner calls the model instead of replaying a graph,
with the same buffers and padding, so that tests on a CPU cover everything except the capture.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from codespec.backends.language_model import Rows
from codespec.backends.torch.cache import KVCache
from codespec.backends.torch.cuda.launch import DeviceRows, RowBuffer, max_tiles, tiles_of

# Padding dominates the cost of a step of few rows, so there are many small sizes and few large ones.
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
FIRST_REACH = 512

Compute = Callable[[DeviceRows, Tensor], Tensor]  # rows and the indices to keep -> logits [kept, vocabulary]
Progress = Callable[[int, int], None]  # captured graphs, all graphs


@dataclass(frozen=True, slots=True)
class Bucket:
    """The size of a step of `rows` rows, each of which sees at most `reach` keys."""

    rows: int
    reach: int


class Buckets:
    """All buckets of up to `max_rows` rows over a cache of `capacity` positions."""

    def __init__(self, max_rows: int, capacity: int) -> None:
        self.rows = tuple(rows for rows in ROWS if rows <= max_rows)
        self.reaches = reaches(capacity)

    def fit(self, rows: int, keys: int) -> Bucket | None:
        """Return the smallest bucket for `rows` rows that see at most `keys` keys, or None if no bucket is so large."""
        index = bisect_left(self.rows, rows)
        return Bucket(self.rows[index], self.reach(keys)) if index < len(self.rows) else None

    def reach(self, keys: int) -> int:
        """Return the smallest reach of a bucket that is at least `keys`."""
        return self.reaches[bisect_left(self.reaches, keys)]

    def largest_first(self) -> list[Bucket]:
        """Return all buckets, largest first, because the first captured graph allocates memory for all graphs."""
        return [Bucket(rows, reach) for rows in reversed(self.rows) for reach in reversed(self.reaches)]


def reaches(capacity: int) -> tuple[int, ...]:
    """Return FIRST_REACH and its repeated doublings below `capacity`, then `capacity`."""
    doublings, reach = [], FIRST_REACH
    while reach < capacity:
        doublings.append(reach)
        reach *= 2
    return (*doublings, capacity)


class CudaRecorder:
    """Records CUDA graphs in one memory pool and on one stream, because torch keeps workspaces for each stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def begin(self) -> torch.cuda.CUDAGraph:
        """Wait for earlier launches, then begin to capture a graph."""
        torch.cuda.current_stream(self._device).synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        return graph

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Run the launches in a context on a side stream, because torch can't capture the default stream."""
        usual = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(usual)
        with torch.cuda.stream(self._stream):
            yield
        usual.wait_stream(self._stream)


def recorder_for(device: torch.device) -> CudaRecorder | None:
    """Return the recorder that captures steps on a device, or None for a CPU."""
    return CudaRecorder(device) if device.type == "cuda" else None


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which Triton launches kernels on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class BucketStep:
    """The step of one bucket, with its row buffer and with logits at a fixed address."""

    def __init__(self, buffer: RowBuffer, compute: Compute) -> None:
        self.buffer = buffer
        self._compute = compute
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor | None = None

    def capture(self, recorder: CudaRecorder) -> None:
        """Capture the step as a graph with padding rows as input. Raise RuntimeError if a layer can't be captured."""
        with recorder.side_stream():
            self.buffer.fill((), 1)
            self._run()  # warm-up: compiles kernels and allocates workspaces before the capture
            graph = recorder.begin()
            try:
                self._logits = self._run()
            finally:
                graph.capture_end()
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
        return self._compute(self.buffer.rows, self.buffer.kept)


class StepRunner:
    """Runs batches over one cache, with attention tiles of `tile` positions and buckets of up to `graph_rows` rows."""

    def __init__(self, compute: Compute, cache: KVCache, tile: int, device: torch.device, graph_rows: int) -> None:
        self.buckets = Buckets(graph_rows, cache.capacity)
        self.device = device
        self.captured = False
        self._compute = compute
        self._slots = cache.slots
        self._tile = tile
        self._logits: Tensor | None = None  # [rows of the largest bucket, vocabulary]; shared by all graphs
        self._steps: dict[Bucket, BucketStep] = {}

    def capture(self, progress: Progress) -> str:
        """Capture the steps of all buckets on a GPU, or of none if one fails; return "" or the reason for failure."""
        recorder, wanted = recorder_for(self.device), self.buckets.largest_first()
        if recorder is None or not wanted:
            return ""
        with on_device(self.device):
            for done, bucket in enumerate(wanted):
                progress(done, len(wanted))
                step = self._make(bucket)
                try:
                    step.capture(recorder)
                except RuntimeError as error:
                    self._steps.clear()
                    return f"can't be captured as graphs ({_reason(error)}): its kernels are launched one by one"
                self._steps[bucket] = step
        self.captured = True
        return ""

    def run(self, batch: Sequence[Rows]) -> Tensor:
        """Run a batch and return a new tensor of float32 logits [sum of keep, vocabulary]."""
        count, keys = sum(len(rows.ids) for rows in batch), max(rows.end for rows in batch)
        kept = sum(rows.keep for rows in batch)
        assert keys <= self.buckets.reaches[-1], "a row beyond its slot's end would overwrite another row"
        with on_device(self.device):
            step = self._step(self.buckets.fit(count, keys))
            if step is not None:
                step.buffer.fill(batch, self._tile)
                return step.replay()[:kept].to(torch.float32, copy=True)
            tiles = sum(1 for _ in tiles_of(batch, self._tile))
            buffer = RowBuffer(count, tiles, self.buckets.reach(keys), self._slots, self.device)
            buffer.fill(batch, self._tile)
            return self._compute(buffer.rows, buffer.kept[: max(1, kept)])[:kept].float()

    def _step(self, bucket: Bucket | None) -> BucketStep | None:
        """Return a bucket's step, created on first use on a CPU, or None if a GPU has not captured the step."""
        if bucket is not None and bucket not in self._steps and self.device.type != "cuda":
            self._steps[bucket] = self._make(bucket)
        return self._steps.get(bucket) if bucket is not None else None

    def _make(self, bucket: Bucket) -> BucketStep:
        tiles = max_tiles(bucket.rows, self._slots, self._tile)
        buffer = RowBuffer(bucket.rows, tiles, bucket.reach, self._slots, self.device)
        return BucketStep(buffer, self._compute_shared)

    def _compute_shared(self, rows: DeviceRows, kept: Tensor) -> Tensor:
        """Compute a step and copy its logits to the buffer that all graphs share."""
        logits = self._compute(rows, kept)
        if self._logits is None:
            self._logits = logits.new_empty(self.buckets.rows[-1], logits.shape[1])
        return self._logits[: len(logits)].copy_(logits)


def _reason(error: RuntimeError) -> str:
    """Return the reason for a failed capture as one line, quoting the first error if ending the capture failed too."""
    cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
    return str(cause).partition("\n")[0] or type(cause).__name__
