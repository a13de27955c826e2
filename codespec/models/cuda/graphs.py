"""Steps on a device through captured graphs of a few sizes, or as they come where no graph is large enough.

Launching a small model's hundreds of kernels one by one takes longer than they run; a graph launches them all at once.
A graph serves one size, so a step takes the smallest bucket that it fits and the rest of it is padding. Each bucket has
its own memory for the rows; the graphs share all other memory. On a CPU the same runner calls the model where a graph
would be replayed, with the same buffers and the same padding, so that everything but the capture is tried there.

Where a whole step can be captured it is one graph. Where it can't, each call of attention ends a graph and begins the
next: attention is launched on the rows that one graph left at a fixed address, and its result goes to where the next
graph reads it. Those addresses stay taken for every layer and bucket, so graphs in parts need more memory
(`models.memory_plan` says how much). Knows rows and logits; knows no layers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from codespec.models.cache import KVCache
from codespec.models.cuda.device_rows import DeviceRows, RowBuffer, most_tiles, tiles_of
from codespec.models.rows import Rows

# Many small sizes, because a step of few rows costs nearly what its padding makes it, and few large ones.
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
FIRST_REACH = 512
PROBE_BYTES = 64 << 20  # a block of its own, which shares no segment with what is in use

Attention = Callable[[], Tensor]  # attends over what is at fixed addresses now
Compute = Callable[[DeviceRows, Tensor], Tensor]  # rows and which are kept -> logits [kept, vocabulary]
Progress = Callable[[int, int], None]  # how many graphs are captured, and of how many
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
        """The smallest bucket for so many rows that see so many keys at most; None where there are too many rows."""
        index = bisect_left(self.rows, rows)
        return Bucket(self.rows[index], self.reach(keys)) if index < len(self.rows) else None

    def reach(self, keys: int) -> int:
        """The smallest reach that covers so many keys."""
        return self.reaches[bisect_left(self.reaches, keys)]

    def largest_first(self) -> list[Bucket]:
        """All buckets: graphs share their memory, and the first one sizes it."""
        return [Bucket(rows, reach) for rows in reversed(self.rows) for reach in reversed(self.reaches)]


def reaches(capacity: int) -> tuple[int, ...]:
    """FIRST_REACH and its doubles below `capacity`, and `capacity`."""
    found, reach = [], FIRST_REACH
    while reach < capacity:
        found.append(reach)
        reach *= 2
    return (*found, capacity)


class Graph(Protocol):
    """The kernels launched between its beginning and its end, to be launched again at once."""

    def capture_end(self) -> None:
        """Ends the capture. RuntimeError if something can't be captured."""
        ...

    def replay(self) -> None:
        """Launches everything again."""
        ...


class Recorder(Protocol):
    """Captures what is launched on a device."""

    def begin(self) -> Graph:
        """Begins a graph, which captures what is launched from now on."""
        ...

    def side_stream(self) -> AbstractContextManager[None]:
        """A context in which graphs may be begun."""
        ...


class CudaRecorder:
    """CUDA graphs that share their memory and a stream: torch keeps a matrix workspace and freed memory for each
    stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def begin(self) -> Graph:
        """Waits for what was launched before."""
        torch.cuda.current_stream(self._device).synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        return graph

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """A stream of its own: the default one can't be captured."""
        usual = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(usual)
        with torch.cuda.stream(self._stream):
            yield
        usual.wait_stream(self._stream)


class PiecewiseGraph:
    """A captured step: graphs, with attention between them if it can't be captured."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._graph: Graph | None = None  # under way
        self._pieces: list[Callable[[], object]] = []

    def record(self, run: Callable[[], Tensor]) -> Tensor:
        """Captures what `run` launches; returns its tensor, whose address stays. RuntimeError if that can't be done."""
        self._begin()
        try:
            return run()
        finally:
            self._end()

    def attend(self, attention: Attention) -> Tensor:
        """Called inside `run`: ends a graph, attends, begins another."""
        self._end()
        seen = attention()
        self._pieces.append(lambda: seen.copy_(attention()))
        self._begin()
        return seen

    def replay(self) -> None:
        """Runs the step again on what is in memory now."""
        for piece in self._pieces:
            piece()

    def _begin(self) -> None:
        self._graph = self._recorder.begin()

    def _end(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:  # none where attention itself has failed
            graph.capture_end()
            self._pieces.append(graph.replay)


def recorder_for(device: torch.device) -> Recorder | None:
    """What captures steps on a device; None on a CPU."""
    return CudaRecorder(device) if device.type == "cuda" else None


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """A context in which Triton launches on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def frees_memory(device: torch.device) -> bool:
    """Whether torch still returns cached memory to a GPU. It doesn't while it believes that a capture is under way, as
    some versions do after one has failed; then whatever is freed is lost to other sizes.
    """
    if device.type != "cuda":
        return True
    with on_device(device):
        torch.empty(PROBE_BYTES, dtype=torch.uint8, device=device)  # freed at once, and kept by torch
        kept = torch.cuda.memory_reserved(device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(device) < kept


class SharedLogits:
    """Memory for the logits of the last step, of up to `rows` rows: one for all graphs instead of one for each."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._memory: Tensor | None = None  # [rows, vocabulary]

    def put(self, logits: Tensor) -> Tensor:
        """Copies a step's logits in and returns the copy."""
        if self._memory is None:
            self._memory = logits.new_empty(self._rows, logits.shape[1])
        return self._memory[: len(logits)].copy_(logits)


class BucketStep:
    """The step of one bucket: its rows, and logits at the same address after each run."""

    def __init__(self, buffer: RowBuffer, compute: Compute, shared: SharedLogits) -> None:
        self.buffer = buffer
        self._compute = compute
        self._shared = shared
        self._graph: PiecewiseGraph | None = None
        self._logits: Tensor | None = None

    def capture(self, recorder: Recorder, whole: bool) -> None:
        """Captures a step of nothing but padding: all of it, or the parts between calls of attention. RuntimeError
        where a layer can't be captured.
        """
        graph, rows = PiecewiseGraph(recorder), self.buffer.rows
        with recorder.side_stream():
            self.buffer.fill((), 1)
            self._run()  # compiles kernels and makes workspaces before the capture
            rows.attend = None if whole else graph.attend
            try:
                self._logits = graph.record(self._run)
            finally:
                rows.attend = None
        self._graph = graph

    def replay(self) -> Tensor:
        """Runs what the buffer holds; the next step of any bucket overwrites the logits."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._logits = self._run()
        assert self._logits is not None
        return self._logits

    def _run(self) -> Tensor:
        return self._shared.put(self._compute(self.buffer.rows, self.buffer.kept))


class StepRunner:
    """Runs batches over one cache, in tiles of `tile` positions. Buckets have up to `graph_rows` rows; `graphs` says
    how their steps were captured.
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
        """Captures each bucket's step, whole or, unless `no_parts` says why not, in parts around attention; returns ""
        or what is launched instead, and why. On a CPU there is nothing to do.
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
        """Captures all steps or none; returns why none."""
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
        """Float32 logits [sum of keep, vocabulary], which belong to the caller."""
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
        """The step of a bucket: on a GPU if it was captured, elsewhere made as needed."""
        if bucket is not None and bucket not in self._steps and self.device.type != "cuda":
            self._steps[bucket] = self._make(bucket)
        return self._steps.get(bucket) if bucket is not None else None

    def _make(self, bucket: Bucket) -> BucketStep:
        tiles = most_tiles(bucket.rows, self._slots, self._tile)
        buffer = RowBuffer(bucket.rows, tiles, bucket.reach, self._scratch, self.device)
        return BucketStep(buffer, self._compute, self._shared)


def _reason(error: RuntimeError) -> str:
    """Why a capture failed, as one line: the error inside it, where the end of the capture fails for that."""
    cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
    return str(cause).partition("\n")[0] or type(cause).__name__
