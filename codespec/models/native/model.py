"""A GGUF file as a language model for the engine, computed by the native kernels: exact by construction.

A row's bits depend on no other row, thread or instruction set, so there is no shape of call to search for and nothing
to try at start. The engine takes logits as torch tensors; keys and values stay in the library's own layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from codespec_native.library import Model, NativeError, Pool, Weights, find_path
from torch import Tensor, nn

from codespec.errors import ModelError
from codespec.models.attention import Seam
from codespec.models.cache import CAPACITY_UNIT, Follower
from codespec.models.gguf.header import read_header
from codespec.models.language_model import GRAPH_ROWS, LanguageModel, ModelSpec
from codespec.models.native.weights import load_weights, read_shape
from codespec.models.rows import Rows, kept_rows
from codespec.models.text_tokenizer import check_tokenizer, load_tokenizer


class NativeCache:
    """The slots of a native model, as the engine sees a `KVCache`."""

    states = features = None

    def __init__(self, model: Model) -> None:
        self._model = model
        self.slots, self.capacity, self.nbytes = model.slots, model.capacity, model.nbytes
        self.lengths = [0] * model.slots
        self.followers: list[Follower] = []

    def resumable(self, slot: int, length: int) -> int:
        """Return the largest number of positions, at most `length`, that a rollback can keep."""
        return length

    def rollback(self, slot: int, length: int) -> None:
        """Roll the slot back to `length` positions."""
        assert 0 <= length <= self.capacity
        self.lengths[slot] = length

    def fork(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        self._model.copy(source, target, length)
        self.lengths[target] = length


class NativeModel(LanguageModel):
    """A model whose steps run in the library, with as many threads as torch would use."""

    def __init__(self, name: str, file: Path, folder: Path, exact: bool) -> None:
        header = read_header(file)
        shape, tokenizer = read_shape(header), load_tokenizer(folder)
        try:
            self._path, self._pools = find_path(), {1: Pool(1)}
            self._weights = load_weights(header, self._pool(torch.get_num_threads()))
        except NativeError as error:
            raise ModelError(f"{file.name} can't be loaded ({error})", "use dtype int8") from error
        check_tokenizer(tokenizer, len(self._weights.embedding), folder)
        spec = ModelSpec(
            name=name,
            architecture=header.text("general.architecture"),
            parameters=_count(self._weights),
            vocab_size=len(self._weights.embedding),
            max_length=shape.context,
            dtype="native",
            layers=shape.layers,
            hidden_size=shape.hidden,
            inner_size=shape.inner,
            lean=True,
            packed=True,
        )
        super().__init__(
            nn.Module(),
            Seam(),
            None,
            tokenizer,
            spec,
            device=torch.device("cpu"),
            dtype=torch.float16,  # of keys and values
            exact=exact,
        )
        self.searched = False
        self.folder = folder
        self.shapes = dict.fromkeys(range(shape.layers), (shape.key_heads, shape.size, shape.size))
        self._native: Model | None = None

    def tap(self, layers: Sequence[int]) -> None:
        """Raise ModelError: heads read the target's layers, which the kernels do not hand out."""
        raise ModelError("A head can't read a model with dtype native", "set dtype bfloat16, or leave out head")

    def allocate(self, slots: int, capacity: int, graph_rows: int = GRAPH_ROWS) -> None:
        """Allocate `slots` cache slots of `capacity` positions and discard the previous cache."""
        self._native = self.cache = None  # free the old cache before allocating
        capacity += -capacity % CAPACITY_UNIT
        try:
            self._native = Model(self._weights, slots, capacity, self._pool(torch.get_num_threads()), self._path)
        except (NativeError, MemoryError) as error:
            what = f"{slots} cache slots of {capacity} tokens do not fit in memory"
            raise ModelError(what, "lower max_batch or context") from error
        self.cache = NativeCache(self._native)  # type: ignore[assignment]

    def forward(self, batch: Sequence[Rows], cached: bool = True) -> Tensor:
        """Run all rows in one step and set each slot's length; return float32 logits [sum of keep, vocabulary]."""
        assert self._native is not None and self.cache is not None and cached, "rows need their slots"
        self._native.use(self._pool(self.threads or torch.get_num_threads()))
        logits = self._native.step(
            [token for rows in batch for token in rows.ids],
            [rows.slot for rows in batch for _ in rows.ids],
            [position for rows in batch for position in range(rows.start, rows.end)],
            list(kept_rows(batch)),
        )
        for rows in batch:
            self.cache.lengths[rows.slot] = rows.end
        return torch.from_numpy(logits)

    def _pool(self, threads: int) -> Pool:
        if threads not in self._pools:
            self._pools[threads] = Pool(threads)
        return self._pools[threads]


def _count(weights: Weights) -> int:
    """Return the number of weights in matrices; the embedding counts unless it is the head."""
    matrices = [weights.head]
    for layer in weights.layers:
        matrices += [layer.query, layer.key, layer.value, layer.out, layer.gate, layer.up, layer.down]
    return sum(matrix.outputs * matrix.inputs for matrix in matrices)
