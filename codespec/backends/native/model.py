"""A Llama-shaped model that the native kernels compute without torch.

The logits of a row do not depend on other rows, threads or the instruction set, so every model is batch-invariant.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version

from codespec_native.library import Floats, Matrix, Model, NativeError, Pool, Weights, path_name

from codespec.backends.gguf.convert import check_kind
from codespec.backends.gguf.header import Header, read_header
from codespec.backends.gguf.tokenizer import read_vocabulary
from codespec.backends.language_model import CAPACITY_UNIT, GRAPH_ROWS, LanguageModel, ModelSpec, Rows, kept_rows
from codespec.backends.memory_plan import demand_memory
from codespec.backends.native.weights import (
    ModelShape,
    Reader,
    forced_path,
    load_weights,
    map_file_tensors,
    map_folder_tensors,
    read_file_shape,
    read_folder_shape,
)
from codespec.backends.text_tokenizer import check_tokenizer, load_tokenizer, share_tokenizer
from codespec.errors import ModelError
from codespec.store.resolve import ModelFiles
from codespec.text.tokenizer import TextTokenizer

SMALL = 20_000_000  # weights in matrices up to which one thread computes a step faster than several


class NativeModel(LanguageModel):
    """A language model whose steps run in the native library."""

    def __init__(
        self, name: str, architecture: str, shape: ModelShape, weights: Weights, tokenizer: TextTokenizer, exact: bool
    ) -> None:
        spec = ModelSpec(
            name=name,
            architecture=architecture,
            parameters=sum(matrix.outputs * matrix.inputs for matrix in matrices_of(weights)),
            vocab_size=len(weights.embedding),
            max_length=shape.context,
            dtype="native",
            layers=shape.layers,
            hidden_size=shape.hidden,
            inner_size=shape.inner,
            lean=True,
            packed=True,
        )
        super().__init__(tokenizer, spec, device="cpu", exact=exact)
        self._weights, self._path = weights, forced_path()
        self._pool = Pool(1)
        self._native: Model | None = None
        self.kernel = f"native ({path_name(self._path)})"

    @property
    def facts(self) -> tuple[object, ...]:
        """The kernels, the number of threads, and the sizes and formats of the weights."""
        layer = self._weights.layers[0]
        shapes = [(matrix.outputs, matrix.inputs, matrix.nbytes) for matrix in (layer.query, layer.down, layer.gate)]
        head = (self._weights.head.outputs, self._weights.head.nbytes)
        heads = (self._weights.heads, self._weights.key_heads, self._weights.size)
        kernels = (version("codespec_native"), self.kernel, self._pool.threads)
        return (*kernels, self.spec.layers, *shapes, head, heads)

    @property
    def weight_bytes(self) -> int:
        """Size in bytes of the packed matrices, all of which a step reads."""
        return sum(matrix.nbytes for matrix in matrices_of(self._weights))

    def use_threads(self, count: int) -> None:
        """Set the number of threads for later steps; a small model always uses one."""
        count = 1 if self.spec.parameters <= SMALL else count
        if count != self._pool.threads:
            self._pool = Pool(count)

    def slot_bytes(self, capacity: int) -> int:
        # Keys and values are stored in float16.
        positions = capacity + -capacity % CAPACITY_UNIT
        return 4 * positions * self.spec.layers * self._weights.key_heads * self._weights.size

    def allocate(self, slots: int, capacity: int, graph_rows: int = GRAPH_ROWS) -> None:
        self._native = self.cache = None  # free the old slots before allocating
        capacity += -capacity % CAPACITY_UNIT
        try:
            self._native = Model(self._weights, slots, capacity, self._pool, self._path)
        except (NativeError, MemoryError) as error:
            what = f"{slots} cache slots of {capacity} tokens do not fit in memory"
            raise ModelError(what, "lower max_batch or context") from error
        self.cache = self._native

    def rollback(self, slot: int, length: int) -> None:
        """Do nothing, because removed positions are overwritten before they are read."""
        assert self._native is not None and 0 <= length <= self._native.capacity

    def fork(self, source: int, target: int, length: int) -> None:
        assert self._native is not None
        self._native.copy(source, target, length)

    def step(self, batch: Sequence[Rows]) -> Floats:
        assert self._native is not None, "rows need their slots"
        self._native.use(self._pool)
        return self._native.step(
            [token for rows in batch for token in rows.ids],
            [rows.slot for rows in batch for _ in rows.ids],
            [position for rows in batch for position in range(rows.start, rows.end)],
            list(kept_rows(batch)),
        )


def load_native_model(files: ModelFiles, exact: bool) -> NativeModel:
    """Load a GGUF file, or a folder with float weights. Raises ModelError for an unsupported model."""
    name, source, pool = files.ref.name, files.path, Pool(os.cpu_count() or 1)
    try:
        if source.is_file():
            demand_memory(name, source.stat().st_size)
            header = read_header(source)
            check_kind(header)
            shape, architecture = read_file_shape(header), header.get("general.architecture", str, "")
            tensors = map_file_tensors(header)
            read_tokenizer = partial(share_tokenizer, source, partial(_tokenizer_of, header))
        else:
            shape, architecture = read_folder_shape(source, files.config), str(files.config["model_type"])
            tensors, read_tokenizer = map_folder_tensors(files), partial(load_tokenizer, source)
        with ThreadPoolExecutor(1) as beside, _no_collection():  # packing does not hold the interpreter lock
            packed = beside.submit(load_weights, shape, Reader(source, tensors, pool))
            tokenizer = read_tokenizer()
            weights = packed.result()
    except NativeError as error:
        raise ModelError(f"{source} can't be loaded ({error})", "use dtype bfloat16") from error
    check_tokenizer(tokenizer, len(weights.embedding), source)
    loaded = NativeModel(name, architecture, shape, weights, tokenizer, exact)
    loaded.folder = source
    return loaded


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable the garbage collector, which would repeatedly traverse the 300,000 merges of a vocabulary being read."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _tokenizer_of(header: Header) -> TextTokenizer:
    words = read_vocabulary(header)
    return TextTokenizer(words.document, config=words.settings, eos_ids=frozenset(words.eos_ids))


def matrices_of(weights: Weights) -> list[Matrix]:
    """Return all matrices that a step multiplies: the output head, and the matrices of all layers."""
    names = ("query", "key", "value", "out", "gate", "up", "down")
    return [weights.head, *(getattr(layer, name) for layer in weights.layers for name in names)]
