"""Steps on a device: through captured graphs of a few sizes, or as they come where none is large enough.

Launching a small model's hundreds of kernels one by one takes longer than they run; a graph launches them all at once.
Each bucket has its own memory for the rows, the graphs share all other memory. Beside a CPU the same runner calls the
model where a graph would be replayed, with the same buffers and the same padding, so that all but the capture is tried
there. Knows rows and logits; knows no layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from codespec.models.buckets import Bucket, Buckets
from codespec.models.cache import KVCache
from codespec.models.device_rows import DeviceRows, RowBuffer, most_tiles, tiles_of
from codespec.models.piecewise import CudaRecorder, Parts, Recorder

if TYPE_CHECKING:
    from codespec.models.language_model import Rows

Compute = Callable[[DeviceRows, Tensor], Tensor]  # rows and which are kept -> logits [kept, vocabulary]
Progress = Callable[[int, int], None]  # how many graphs are captured, and of how many
Graphs = Literal["none", "whole", "parts"]


def recorder_for(device: torch.device) -> Recorder | None:
    """What records steps on a device; nothing does on a CPU."""
    return CudaRecorder(device) if device.type == "cuda" else None


def current(device: torch.device) -> AbstractContextManager[object]:
    """Inside it Triton launches there."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class SharedLogits:
    """Where the logits of the step that ran last stand, of up to `rows` rows. Graphs that each kept their own would
    take that memory as often as there are graphs.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._memory: Tensor | None = None  # [rows, vocabulary]

    def put(self, logits: Tensor) -> Tensor:
        """Copies a step's logits in; returns them where they are now."""
        if self._memory is None:
            self._memory = logits.new_empty(self._rows, logits.shape[1])
        return self._memory[: len(logits)].copy_(logits)


class BucketStep:
    """The step of one bucket: its rows, and logits that stand at the same address after each run."""

    def __init__(self, buffer: RowBuffer, compute: Compute, shared: SharedLogits) -> None:
        self.buffer = buffer
        self._compute = compute
        self._shared = shared
        self._parts: Parts | None = None
        self._logits: Tensor | None = None

    def capture(self, recorder: Recorder, whole: bool) -> None:
        """Records the step, of nothing but padding; all of it, or what lies between calls of attention. Raises
        RuntimeError where a layer can't be recorded.
        """
        parts, rows = Parts(recorder), self.buffer.rows
        with recorder.aside():
            self.buffer.fill((), 1)
            self._run()  # kernels are compiled and workspaces made outside of the recording
            rows.attend = None if whole else parts.attend
            try:
                self._logits = parts.record(self._run)
            finally:
                rows.attend = None
        self._parts = parts

    def replay(self) -> Tensor:
        """Runs what the buffer holds; the next step of any bucket overwrites the logits."""
        if self._parts is not None:
            self._parts.replay()
        else:
            self._logits = self._run()
        assert self._logits is not None
        return self._logits

    def _run(self) -> Tensor:
        return self._shared.put(self._compute(self.buffer.rows, self.buffer.kept))


class StepRunner:
    """Runs batches over one cache, in tiles of `tile` positions. Buckets have up to `graph_rows` rows; `graphs` says
    how their steps are captured.
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
        """Records each bucket's step, whole or, unless `no_parts` says why not, at least around attention; returns ""
        or what is launched instead, and why. Beside a CPU there is nothing to do.
        """
        problem = self._capture(True, progress)
        if not problem:
            return ""
        if no_parts:
            return f"can't be captured whole ({problem}), and {no_parts}: its steps are launched piece by piece"
        if not self._capture(False, progress):
            return f"can't be captured whole ({problem}): attention is launched between graphs of the rest"
        return f"can't be captured as graphs ({problem}): its steps are launched piece by piece"

    def _capture(self, whole: bool, progress: Progress) -> str:
        """Records all or nothing; returns why nothing."""
        recorder, wanted = recorder_for(self.device), self.buckets.largest_first()
        if recorder is None or not wanted:
            return ""
        with current(self.device):
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
        """Float32 logits [sum of keep, vocabulary] of the caller's own."""
        count, keys = sum(len(rows.ids) for rows in batch), max(rows.start + len(rows.ids) for rows in batch)
        kept = sum(rows.keep for rows in batch)
        assert keys <= self.buckets.reaches[-1], "a row beyond the slot's end would be written over another's"
        with current(self.device):
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
        """The step of a bucket. Beside a GPU those that were captured; they are made as needed where none can be."""
        if bucket is not None and bucket not in self._steps and self.device.type != "cuda":
            self._steps[bucket] = self._make(bucket)
        return self._steps.get(bucket) if bucket is not None else None

    def _make(self, bucket: Bucket) -> BucketStep:
        tiles = most_tiles(bucket.rows, self._slots, self._tile)
        buffer = RowBuffer(bucket.rows, tiles, bucket.reach, self._scratch, self.device)
        return BucketStep(buffer, self._compute, self._shared)


def _reason(error: RuntimeError) -> str:
    """Why a capture failed, as a line: what failed inside it, where its end complains of that too."""
    cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
    return str(cause).partition("\n")[0] or type(cause).__name__
