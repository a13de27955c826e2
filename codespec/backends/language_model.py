"""A causal language model as the engine sees it: token ids in, logits out, and slots that keep what was read.

Two backends implement it: `native` computes Llama-shaped models on a CPU, `torch` all others, and on
GPUs. Nothing here or above needs torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from codespec.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Rows:
    """Ids for positions start, start+1, … of a sequence's slot; the last `keep` rows need logits."""

    slot: int
    start: int
    ids: Sequence[int]
    keep: int = 1

    @property
    def end(self) -> int:
        """The length of the sequence after these rows."""
        return self.start + len(self.ids)


def kept_rows(batch: Sequence[Rows]) -> Iterator[int]:
    """Yield the flat indices of the batch's rows that need logits: the last `keep` of each sequence."""
    end = 0
    for rows in batch:
        end += len(rows.ids)
        yield from range(end - rows.keep, end)


Floats = NDArray[np.float32]
Progress = Callable[[int, int], None]  # called with the number of steps done and the number of all
GRAPH_ROWS = 128  # default of the setting graph_rows
CAPACITY_UNIT = 512  # positions: slots are allocated in multiples of this, since exact attention reads whole blocks


class DeviceLogits(Protocol):
    """Logits [rows, vocabulary] in the memory of a GPU, as torch holds them."""

    def cpu(self) -> DeviceLogits:
        """Return a copy in the host's memory."""

    def numpy(self) -> Floats:
        """Return the numbers of a copy in the host's memory."""

    def __getitem__(self, rows: slice) -> DeviceLogits:
        """Return some rows."""

    def __len__(self) -> int:
        """Return the number of rows."""


Logits = Floats | DeviceLogits


def on_host(logits: Logits) -> Floats:
    """Return logits in the host's memory: themselves if they are there, so that writing to them is shared."""
    return logits if isinstance(logits, np.ndarray) else logits.cpu().numpy()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Facts about a loaded model.

    parameters  the number of weights; tied weights count once
    max_length  the longest text in tokens
    inner_size  the width of the feed-forward layer
    """

    name: str
    architecture: str
    parameters: int
    vocab_size: int
    max_length: int
    dtype: str
    layers: int = 0
    hidden_size: int = 0
    inner_size: int = 0
    lean: bool = False
    packed: bool = False
    notes: tuple[str, ...] = ()


class Cache(Protocol):
    """A model's slots, as their user sees them. `nbytes` is the size of all."""

    @property
    def slots(self) -> int:
        """Number of slots."""

    @property
    def capacity(self) -> int:
        """Positions of a slot."""

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""


class LanguageModel(ABC):
    """A model with its tokenizer and slots. Rows of several sequences share one step.

    token_bytes  the bytes of every id in the vocabulary, which is often larger than the tokenizer's
    folder       of its files; None if it was built in memory
    exact        whether results must be batch-invariant, bit for bit
    variance     the reason why an exact model is not batch-invariant
    kernel       the kernels that compute its products, with their instruction set; "" for torch's own
    device       where it computes; `str` gives the name
    on_device    whether logits stay in a device's memory, so that choices are made there
    cache        its slots; None before they are allocated
    checked      whether exact mode is checked at start, because it depends on kernels that are not ours
    """

    on_device = False
    checked = False

    def __init__(self, tokenizer: TextTokenizer, spec: ModelSpec, *, device: Any, exact: bool) -> None:
        self.tokenizer = tokenizer
        self.spec = spec
        self.device = device
        self.exact = exact
        self.token_bytes = padded_bytes(tokenizer, spec.vocab_size)
        self.folder: Path | None = None
        self.variance = ""
        self.kernel = ""
        self.cache: Cache | None = None

    @property
    @abstractmethod
    def facts(self) -> tuple[object, ...]:
        """What determines the time and the bits of a step, without slots: plain values, or objects with a `repr`.

        Models that differ only in name and weights have the same facts.
        """

    @property
    def call_facts(self) -> tuple[object, ...]:
        """What else determines the time of a step and may change after loading."""
        return ()

    @property
    def bucket_rows(self) -> tuple[int, ...]:
        """The sizes in rows to which steps are padded; empty for none."""
        return ()

    @abstractmethod
    def step(self, batch: Sequence[Rows]) -> Logits:
        """Compute all rows and set each slot's length to the end of its rows.

        Return float32 logits [sum of keep, vocabulary], sequence by sequence, which the caller may overwrite.
        """

    @abstractmethod
    def use_threads(self, count: int) -> None:
        """Compute with this number of CPU threads from the next step on."""

    @abstractmethod
    def slot_bytes(self, capacity: int) -> int:
        """Return the bytes of a slot of at least `capacity` positions."""

    @abstractmethod
    def allocate(self, slots: int, capacity: int, graph_rows: int = GRAPH_ROWS) -> None:
        """Allocate `slots` slots of at least `capacity` positions and discard the previous ones."""

    @abstractmethod
    def rollback(self, slot: int, length: int) -> None:
        """Truncate a slot to `length` positions, which `resumable` must have returned."""

    @abstractmethod
    def fork(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` to slot `target`."""

    def capture(self, progress: Progress = lambda done, of: None) -> str:
        """Capture the graphs that steps replay on a GPU.

        Return "", or a clause for a report: why capturing failed, and how steps run instead.
        """
        return ""

    def wait(self) -> None:
        """Wait until the work of earlier steps is done, for timing."""
        return

    def rotary_key(self, length: int) -> int:
        """Return a key for the rotation of a sequence that may grow to `length`; prefixes need equal keys."""
        return 0

    def admit(self, slot: int, length: int, cached: int = 0) -> None:
        """Begin a sequence in `slot` that may grow to `length`; its first `cached` positions are already cached."""
        self.rollback(slot, cached)

    def keep_for_later(self, slot: int, ids: Sequence[int], exactly: int = 0) -> None:
        """Keep what later prompts need beside keys and values to continue from `ids`, the slot's prompt.

        They may share it up to a place where prompts branch, or its first `exactly` ids.
        """
        return

    def resumable(self, slot: int, length: int) -> int:
        """Return the largest number of positions, at most `length`, that a slot can keep."""
        return length

    def resume(self, slot: int, length: int) -> int:
        """Truncate a slot to the largest number of positions, at most `length`, that it can keep, and return it."""
        kept = self.resumable(slot, length)
        self.rollback(slot, kept)
        return kept

    def assume(self, slot: int, length: int) -> None:
        """Pretend that a slot holds `length` positions, for timing."""
        self.admit(slot, length, length)


def padded_bytes(tokenizer: TextTokenizer | None, vocab_size: int) -> list[bytes]:
    """Return the bytes of every id in the model's vocabulary, which is often larger than its tokenizer's."""
    spelled = tokenizer.token_bytes if tokenizer is not None else []
    return (spelled + [b""] * (vocab_size - len(spelled)))[:vocab_size]
