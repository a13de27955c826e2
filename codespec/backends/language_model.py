"""The interface of a causal language model, and the pool of its cache slots.

The backend `native` runs Llama-shaped models on a CPU, and the backend `torch` runs any model on a CPU or GPU. This
module does not import torch.

`SlotPool` implements prefix caching. A released slot retains its keys and values, so a later prompt of the same scope
computes only the tokens after the common prefix. A slot of another scope may be evicted, but its content is never
reused. If there are more slots than concurrent requests, the caches of idle documents are retained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from codespec.api.types import Owner
from codespec.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Rows:
    """The ids of a sequence at positions start, start + 1, … of its slot. Only the last `keep` ids produce logits."""

    slot: int
    start: int
    ids: Sequence[int]
    keep: int = 1

    @property
    def end(self) -> int:
        """The length of the slot after these rows are computed."""
        return self.start + len(self.ids)


def kept_rows(batch: Sequence[Rows]) -> Iterator[int]:
    """Yield the indices of the rows that need logits, counted over the whole batch."""
    end = 0
    for rows in batch:
        end += len(rows.ids)
        yield from range(end - rows.keep, end)


Floats = NDArray[np.float32]
Progress = Callable[[int, int], None]  # called with the number of completed steps and the total
GRAPH_ROWS = 128  # default of the setting graph_rows
NO_OWNER = Owner()
CAPACITY_UNIT = 512  # a slot has a multiple of this many positions, because exact attention reads whole blocks


class DeviceLogits(Protocol):
    """Logits [rows, vocabulary] in GPU memory: the interface of a torch tensor, declared without importing torch."""

    def cpu(self) -> DeviceLogits: ...
    def numpy(self) -> Floats: ...
    def __getitem__(self, rows: slice) -> DeviceLogits: ...
    def __len__(self) -> int: ...


Logits = Floats | DeviceLogits


def on_host(logits: Logits) -> Floats:
    """Return logits as an array in host memory. An array is returned without copying."""
    return logits if isinstance(logits, np.ndarray) else logits.cpu().numpy()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Facts about a loaded model.

    parameters  number of weights; tied weights are counted once
    max_length  maximum length of a text in tokens
    inner_size  width of the feed-forward layers
    lean        whether the model runs codespec's own layers instead of those of transformers
    packed      whether the weights are stored in a packed layout
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
    """The memory for the cache slots of a model."""

    @property
    def slots(self) -> int:
        """Number of slots."""

    @property
    def capacity(self) -> int:
        """Number of positions per slot."""

    @property
    def nbytes(self) -> int:
        """Size of all slots in bytes."""


class LanguageModel(ABC):
    """A language model with its tokenizer and cache slots. One step may compute rows of several sequences.

    token_bytes  the bytes of every id in the model's vocabulary, which is often larger than the tokenizer's
    folder       the folder or file with the weights; None if the model was built in memory
    exact        whether results must be batch-invariant, bit for bit
    variance     the reason why an exact model is not batch-invariant, or ""
    kernel       the name of the kernels for matrix products, or "" for those of torch
    device       the device that the model runs on, whose name is `str(device)`
    on_device    whether logits remain in device memory, and tokens are chosen on the device
    cache        the slots; None before they are allocated
    checked      whether batch invariance is tested at startup, because it depends on third-party kernels
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
        """Facts that determine the duration and the exact results of a step: plain values, or objects with a `repr`.

        Models that differ only in name, weights and slots have the same facts.
        """

    @property
    def call_facts(self) -> tuple[object, ...]:
        """Further facts that determine the duration of a step and may change after loading."""
        return ()

    @abstractmethod
    def step(self, batch: Sequence[Rows]) -> Logits:
        """Compute all rows, and set the length of each sequence's slot to the end of the sequence's rows.

        Return float32 logits [sum of keep, vocabulary] in the order of the batch. The caller may overwrite the logits.
        """

    @abstractmethod
    def use_threads(self, count: int) -> None:
        """Set the number of CPU threads for later steps."""

    @abstractmethod
    def slot_bytes(self, capacity: int) -> int:
        """Return the size in bytes of a slot with at least `capacity` positions."""

    @abstractmethod
    def allocate(self, slots: int, capacity: int, graph_rows: int = GRAPH_ROWS) -> None:
        """Allocate `slots` slots of at least `capacity` positions each, and free the previous slots."""

    @abstractmethod
    def rollback(self, slot: int, length: int) -> None:
        """Truncate a slot to `length` positions. The length must be one that `resumable` returned."""

    @abstractmethod
    def fork(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` to slot `target`."""

    def capture(self, progress: Progress = lambda done, of: None) -> str:
        """Capture the CUDA graphs that steps replay.

        Return "" after success; after a failure, return a clause that explains the cause and how steps run instead.
        """
        return ""

    def wait(self) -> None:
        """Wait until the device has finished all earlier steps, for timing."""
        return

    def rotary_key(self, length: int) -> int:
        """Return a key for the rotary scaling of a sequence of up to `length` positions.

        Only sequences with equal keys can share a cached prefix.
        """
        return 0

    def admit(self, slot: int, length: int, cached: int = 0) -> None:
        """Begin a sequence of up to `length` positions in `slot`, which already contains the first `cached`."""
        self.rollback(slot, cached)

    def keep_for_later(self, slot: int, ids: Sequence[int], exactly: int = 0) -> None:
        """Cache recurrent states, so that later prompts can continue from prefixes of the slot's prompt `ids`.

        Cached prefixes end where prompts usually diverge, and after `exactly` ids if `exactly` is not 0.
        """
        return

    def resumable(self, slot: int, length: int) -> int:
        """Return the largest length, at most `length`, to which a slot can be truncated."""
        return length

    def resume(self, slot: int, length: int) -> int:
        """Truncate a slot to its `resumable` length, and return that length."""
        kept = self.resumable(slot, length)
        self.rollback(slot, kept)
        return kept

    def assume(self, slot: int, length: int) -> None:
        """Mark `length` positions of a slot as cached without computing them, for timing."""
        self.admit(slot, length, length)


def padded_bytes(tokenizer: TextTokenizer | None, vocab_size: int) -> list[bytes]:
    """Return the bytes of every id of a model with `vocab_size` ids; ids that the tokenizer lacks have no bytes."""
    spelled = tokenizer.token_bytes if tokenizer is not None else []
    return (spelled + [b""] * (vocab_size - len(spelled)))[:vocab_size]


@dataclass(frozen=True, slots=True)
class Lease:
    """An acquired slot.

    `source` is the slot that holds the keys and values of the first `shared` ids. If `source` differs from `slot`, the
    caller must copy these keys and values before acquiring another slot.
    """

    slot: int
    source: int
    shared: int


@dataclass(frozen=True, slots=True)
class Held:
    """The content of a free slot: ids, rotary key and owner."""

    ids: list[int]
    rotary_key: int = 0
    owner: Owner = NO_OWNER


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Usage of a cache of `max_bytes` bytes: the total number of slots, and the number of slots taken.

    `tokens` and `nbytes` are the size of the content that free slots retain for later prompts.
    """

    slots: int
    taken: int
    tokens: int
    nbytes: int
    max_bytes: int

    @classmethod
    def of(cls, pool: SlotPool, cache: Cache | None) -> CacheUse:
        """Return the usage of a pool's cache."""
        assert cache is not None
        held = cache.nbytes * pool.num_tokens // (cache.slots * cache.capacity)
        return cls(pool.count, pool.num_taken, pool.num_tokens, held, cache.nbytes)


class SlotPool:
    """A pool of `count` slots. The function `resumable` returns how many leading positions of a slot can be reused."""

    def __init__(self, count: int, resumable: Callable[[int, int], int] = lambda slot, length: length) -> None:
        self.count = count
        self._resumable = resumable
        self.num_tokens = 0  # ids cached in free slots
        self._free: dict[int, Held] = {slot: Held([]) for slot in range(count)}  # least recently used first
        self._taken: dict[int, Owner] = {}
        self._newest: dict[Owner, int] = {}  # each document's most recent slot

    @property
    def num_taken(self) -> int:
        """Number of taken slots."""
        return len(self._taken)

    def holds(self, owner: Owner) -> bool:
        """Return whether a free slot holds content of this owner's document."""
        return self._newest.get(owner) in self._free

    def acquire(self, ids: Sequence[int], rotary_key: int = 0, owner: Owner = NO_OWNER) -> Lease:
        """Take a free slot for a prompt.

        The slot with the longest common prefix is taken if it belongs to the same document and at least half of its
        content is reused. Otherwise another slot is evicted, and the caller copies the prefix to that slot.
        """
        assert self._free, "no slot is free"
        source, shared = self._longest(ids, rotary_key, owner)
        held = self._free[source]
        slot = source
        if held.owner != owner or 2 * shared < len(held.ids):
            slot = self._victim(owner)
        replaced = self._free.pop(slot)
        self.num_tokens -= len(replaced.ids)
        if self._newest.get(replaced.owner) == slot:
            del self._newest[replaced.owner]
        if owner.document:
            self._newest[owner] = slot
        self._taken[slot] = owner
        return Lease(slot, source if shared else slot, shared)

    def release(self, slot: int, ids: Sequence[int], rotary_key: int = 0) -> None:
        """Release a slot, which retains the keys and values of `ids`."""
        assert slot in self._taken, "the slot is not taken"
        self._free[slot] = Held(list(ids), rotary_key, self._taken.pop(slot))
        self.num_tokens += len(ids)

    def _longest(self, ids: Sequence[int], rotary_key: int, owner: Owner) -> tuple[int, int]:
        """Return the free slot with the longest common prefix with `ids`, and that prefix's length.

        Among equally long prefixes, prefer one in a slot of the same document, then the slot with the shortest content.
        """

        def rank(slot: int) -> tuple[int, bool, int]:
            held = self._free[slot]
            alike = held.rotary_key == rotary_key and held.owner.scope == owner.scope
            shared = common_prefix(held.ids, ids) if alike else 0
            shared = self._resumable(slot, shared) if shared else 0
            return shared, held.owner == owner, -len(held.ids)

        best = max(self._free, key=rank)
        return best, rank(best)[0]

    def _victim(self, owner: Owner) -> int:
        """Return the slot to evict.

        Prefer an empty slot, then a slot whose document has or acquires a newer slot, then the least recently used.
        """

        def value(slot: int) -> int:
            held = self._free[slot]
            if not held.ids:
                return 0
            newest = self._newest.get(held.owner, slot)  # missing if the newest slot was released empty
            return 1 if held.owner.document and (held.owner == owner or newest != slot) else 2

        return min(self._free, key=value)


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of leading ids that both sequences share."""
    same, length = 0, min(len(first), len(second))
    while same < length:  # bisect, so that lists are compared in C
        middle = (same + length + 1) // 2
        if list(first[same:middle]) == list(second[same:middle]):
            same = middle
        else:
            length = middle - 1
    return same
