"""Python classes for the compiled library's thread pools, packed matrices and models.

Every size is checked before the library reads or writes memory. Library calls release Python's global interpreter lock.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codespec_native.build import library_file, sources_digest

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

TILE, GROUP = 16, 32
MAX_SIDE = 1 << 24  # outputs or inputs of a matrix
PASS_ROWS = 256  # rows that are computed at a time; a step of more rows takes several passes
PATHS = ("avx512", "avxvnni", "avx2", "neon", "scalar")
# The supported formats of a GGUF tensor: number -> (name, inputs per block, bytes per block).
FORMATS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    30: ("BF16", 1, 2),
}
BUILD = "run `python -m codespec_native.build`"


class NativeError(Exception):
    """Raised with a one-sentence message if the library is missing, an input is invalid or memory runs out."""


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("input_norm", "inner_norm", "query_norm", "key_norm")),
        *((name, ctypes.c_void_p) for name in ("query_bias", "key_bias", "value_bias", "out_bias")),
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "out", "gate", "up", "down")),
        ("window", ctypes.c_int32),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "hidden", "heads", "key_heads", "size", "inner")),
        *((name, ctypes.c_int32) for name in ("rotated", "halves", "slots", "capacity", "embedding_format")),
        *((name, ctypes.c_float) for name in ("epsilon", "embedding_scale", "residual_scale")),
        *((name, ctypes.c_float) for name in ("attention_scale", "logit_scale")),
        *((name, ctypes.c_void_p) for name in ("embedding", "final_norm", "cosine", "sine", "head", "layer")),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
    )


@cache
def load_library() -> ctypes.CDLL:
    """Load the library once. Raises NativeError if the library is missing, stale or built for another machine."""
    file = library_file()
    if not file.is_file():
        raise NativeError(f"The native kernels are not built ({file.name} is missing): {BUILD}.")
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise NativeError(f"The native kernels do not load on this machine ({error}): {BUILD}.") from error
    if sources := getattr(library, "codespec_sources", None):
        sources.restype = ctypes.c_char_p
    if not sources or sources().decode() != sources_digest():
        raise NativeError(f"The native kernels were built from another version's sources: {BUILD}.")
    pointer, whole = ctypes.c_void_p, ctypes.c_int
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "pool_new": (pointer, (whole,)),
        "pool_free": (None, (pointer,)),
        "pool_threads": (whole, (pointer,)),
        "find_kernels": (pointer, (ctypes.c_char_p,)),
        "codespec_path_name": (ctypes.c_char_p, (pointer,)),
        "codespec_pack": (pointer, (pointer, whole, whole, whole, pointer)),
        "codespec_packed_bytes": (ctypes.c_size_t, (pointer,)),
        "codespec_unpack_free": (None, (pointer,)),
        "codespec_multiply": (whole, (pointer, pointer, pointer, pointer, whole, pointer)),
        "codespec_rotary": (None, (ctypes.c_double, ctypes.c_double, pointer, whole, whole, pointer, pointer)),
        "workspace_new": (pointer, (pointer, pointer, whole)),
        "workspace_free": (None, (pointer,)),
        "codespec_step": (None, (*(pointer,) * 4, whole, *(pointer,) * 3, whole, pointer, pointer)),
        "decode_row": (None, (whole, pointer, whole, ctypes.c_int64, pointer)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def paths() -> list[str]:
    """Return the names of the instruction sets that this processor can run, best first."""
    return [path for path in PATHS if load_library().find_kernels(path.encode())]


def find_path(name: str = "") -> int:
    """Return the address of an instruction set's kernels ("": the best). Raises NativeError for unsupported names."""
    found = load_library().find_kernels(name.encode())
    if not found:
        raise NativeError(f"This processor can't run the instruction set {name}: choose one of {', '.join(paths())}.")
    return int(found)


def path_name(path: int) -> str:
    """Return the name of the instruction set whose kernels are at an address from `find_path`."""
    return str(load_library().codespec_path_name(path).decode())


class Pool:
    """Threads, including the caller's, that share the work of a call. A pool must run only one call at a time."""

    def __init__(self, threads: int) -> None:
        if not 1 <= threads <= 1024:
            raise NativeError(f"{threads} threads can't be started: choose 1 to 1024.")
        self.address = load_library().pool_new(threads)
        if not self.address:
            raise NativeError("There is not enough memory for a thread pool: close other programs.")

    @property
    def threads(self) -> int:
        """Number of threads that could be started, including the caller's."""
        return int(load_library().pool_threads(self.address))

    def __del__(self) -> None:
        if getattr(self, "address", None):
            load_library().pool_free(self.address)


def block_bytes(kind: int, inputs: int) -> int:
    """Return the size in bytes of a row of `inputs` weights. Raises NativeError for unsupported formats and widths."""
    if kind not in FORMATS:
        known = ", ".join(name for name, *_ in FORMATS.values())
        raise NativeError(f"The GGUF format {kind} is not supported: use one of {known}.")
    name, unit, each = FORMATS[kind]
    if inputs % max(unit, GROUP) or not 0 < inputs <= MAX_SIDE:
        raise NativeError(f"Rows of {inputs} inputs are not supported: {name} needs a multiple of {max(unit, GROUP)}.")
    return inputs // unit * each


class Matrix:
    """A packed copy of a matrix [outputs, inputs], created from the matrix's bytes in the GGUF format `kind`."""

    def __init__(self, pool: Pool, kind: int, outputs: int, inputs: int, data: Bytes) -> None:
        needed = block_bytes(kind, inputs) * outputs
        if not 0 < outputs <= MAX_SIDE or data.nbytes != needed or not data.flags.c_contiguous:
            raise NativeError(f"A matrix has {data.nbytes} bytes: {outputs} rows of {inputs} inputs require {needed}.")
        self.outputs, self.inputs = outputs, inputs
        self.address = load_library().codespec_pack(pool.address, kind, outputs, inputs, data.ctypes.data)
        if not self.address:
            raise NativeError(f"There is not enough memory for a matrix of {needed} bytes: use a smaller model.")

    @property
    def nbytes(self) -> int:
        """Size of the packed weights in bytes."""
        return int(load_library().codespec_packed_bytes(self.address))

    def multiply(self, rows: Floats, pool: Pool, path: int) -> Floats:
        """Return the product [rows, outputs] of `rows` [rows, inputs] and the matrix."""
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.inputs:
            raise NativeError(f"Rows of shape {rows.shape} don't fit a matrix of {self.inputs} inputs.")
        out = np.empty((len(rows), self.outputs + -self.outputs % TILE), dtype=np.float32)
        call = load_library().codespec_multiply
        if not call(self.address, pool.address, path, rows.ctypes.data, len(rows), out.ctypes.data):
            raise NativeError("There is not enough memory for a matrix product: close other programs.")
        return out[:, : self.outputs]

    def __del__(self) -> None:
        if getattr(self, "address", None):
            load_library().codespec_unpack_free(self.address)


def rotary_tables(
    base: float, rotated: int, positions: int, factor: float = 1.0, factors: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return cosines and sines [positions, rotated / 2] of position * base^(-2 i / rotated) / factor / factors[i]."""
    if factors is not None and factors.shape != (rotated // 2,):
        raise NativeError(f"{rotated} rotated numbers require {rotated // 2} factors, not the shape {factors.shape}.")
    cosine, sine = (np.empty((positions, rotated // 2), dtype=np.float32) for _ in range(2))
    each = None if factors is None else np.ascontiguousarray(factors, dtype=np.float32)
    address = None if each is None else each.ctypes.data
    load_library().codespec_rotary(base, factor, address, rotated, positions, cosine.ctypes.data, sine.ctypes.data)
    return cosine, sine


def untouched_zeros(shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """Return an array of zeros that takes memory only where it has been written. Raises MemoryError.

    Huge pages, which numpy requests, are disabled: with them, one token per slot would make the whole cache resident.
    """
    try:
        memory = mmap.mmap(-1, max(1, prod(shape) * 2))
    except (OSError, OverflowError) as error:
        raise MemoryError from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages refuses the advice
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint16, count=prod(shape)).reshape(shape)


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of a layer. The norms of queries and keys have the shape [size], and the other norms [hidden]."""

    input_norm: Floats
    inner_norm: Floats
    query: Matrix
    key: Matrix
    value: Matrix
    out: Matrix
    gate: Matrix
    up: Matrix
    down: Matrix
    query_norm: Floats | None = None
    key_norm: Floats | None = None
    query_bias: Floats | None = None
    key_bias: Floats | None = None
    value_bias: Floats | None = None
    out_bias: Floats | None = None
    window: int = 0


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights and constants of a model with a Llama architecture.

    embedding  [vocabulary, bytes per row] as in the file, in the format `embedding_kind`
    size       size of an attention head
    rotated    numbers of a head that are rotated, in pairs (i, i + rotated / 2) if `halves`, else (2 i, 2 i + 1)
    base, factor, factors  arguments of `rotary_tables`
    """

    embedding: Bytes
    embedding_kind: int
    layers: Sequence[Layer]
    final_norm: Floats
    head: Matrix
    heads: int
    key_heads: int
    size: int
    rotated: int
    halves: bool
    base: float
    epsilon: float
    factor: float = 1.0
    factors: Floats | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float = 0.0  # 0: 1 / sqrt(size)
    logit_scale: float = 1.0

    def check(self) -> None:
        """Raise NativeError if the sizes are inconsistent or if the kernels do not support the sizes."""
        hidden, queries, keys = self.final_norm.size, self.heads * self.size, self.key_heads * self.size
        if hidden % GROUP or self.size % TILE or self.size > 512 or self.rotated % 2 or self.rotated > self.size:
            raise NativeError(f"Hidden size {hidden} or head size {self.size} is not supported: use another model.")
        if not 0 < self.key_heads <= self.heads or self.heads % self.key_heads:
            raise NativeError(f"{self.heads} query heads can't share {self.key_heads} key heads: use another model.")
        sizes: dict[str, tuple[object, object]] = {
            "embedding": (self.embedding.shape[1], block_bytes(self.embedding_kind, hidden)),
            "head": (self.head.inputs, hidden),
        }
        for number, layer in enumerate(self.layers):
            inner = layer.gate.outputs
            for name, outputs, inputs in (
                *(("query", queries, hidden), ("key", keys, hidden), ("value", keys, hidden), ("out", hidden, queries)),
                *(("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)),
            ):
                matrix: Matrix = getattr(layer, name)
                sizes[f"{name} of layer {number}"] = ((matrix.outputs, matrix.inputs), (outputs, inputs))
            for name, width in (
                *(("input_norm", hidden), ("inner_norm", hidden), ("query_norm", self.size), ("key_norm", self.size)),
                *(("query_bias", queries), ("key_bias", keys), ("value_bias", keys), ("out_bias", hidden)),
            ):
                if (vector := getattr(layer, name)) is not None:
                    sizes[f"{name} of layer {number}"] = (vector.shape, (width,))
            if inner % GROUP or inner != self.layers[0].gate.outputs:
                raise NativeError(f"Layer {number} has inner size {inner}: use one multiple of {GROUP} in all layers.")
        for name, (found, needed) in sizes.items():
            if found != needed:
                raise NativeError(f"The {name} has the size {found} instead of {needed}.")


class Model:
    """A model's weights, a cache for `slots` sequences of up to `capacity` tokens, and its threads and kernels."""

    def __init__(self, weights: Weights, slots: int, capacity: int, pool: Pool, path: int) -> None:
        weights.check()
        self.weights, self.slots, self.capacity = weights, slots, capacity + -capacity % TILE
        self._pool, self._path = pool, path
        self._kept: list[object] = []  # what the structures point to
        shape = (len(weights.layers), slots, weights.key_heads, self.capacity * weights.size)
        self.keys, self.values = (untouched_zeros(shape) for _ in range(2))
        self._model = self._describe()
        self._workspace = self._new_workspace()

    def use(self, pool: Pool) -> None:
        """Use another pool's threads for later steps."""
        if pool is not self._pool:
            load_library().workspace_free(self._workspace)
            self._workspace, self._pool = 0, pool  # 0: freed, also if the next line fails
            self._workspace = self._new_workspace()

    @property
    def nbytes(self) -> int:
        """Size of the cache in bytes."""
        return self.keys.nbytes + self.values.nbytes

    def step(
        self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int], kept: Sequence[int]
    ) -> Floats:
        """Run the model on tokens, each with a slot and a position, and return the logits [len(kept), vocabulary].

        The tokens of a sequence must be adjacent with ascending positions; `kept` must be ascending token indices.
        """
        ids, at, where, rows = (np.asarray(given, dtype=np.int32) for given in (tokens, slots, positions, kept))
        vocabulary = len(self.weights.embedding)
        for name, values, bound in (("token", ids, vocabulary), ("slot", at, self.slots), ("row", rows, len(ids))):
            if values.size and not (values.min() >= 0 and values.max() < bound):
                raise NativeError(f"A {name} is out of range: it must be below {bound}.")
        if where.size and not (where.min() >= 0 and where.max() < self.capacity):
            raise NativeError(f"A position is out of range: it must be below {self.capacity}.")
        if not len(ids) == len(at) == len(where) or (np.diff(rows) <= 0).any():
            raise NativeError("A step requires one slot and one position per token, and ascending row indices.")
        outputs = self.weights.head.outputs
        logits = np.empty((len(rows), outputs + -outputs % TILE), dtype=np.float32)
        load_library().codespec_step(
            *(ctypes.byref(self._model), self._workspace, self._pool.address, self._path, len(ids)),
            *(ids.ctypes.data, at.ctypes.data, where.ctypes.data, len(rows), rows.ctypes.data, logits.ctypes.data),
        )
        return logits[:, :outputs]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` to slot `target`, rounded up to whole blocks of 16."""
        size, whole = self.weights.size, length + -length % TILE
        keys = self.keys.reshape(*self.keys.shape[:3], self.capacity, size)
        values = self.values.reshape(*self.values.shape[:3], size // TILE, self.capacity, TILE)
        keys[:, target, :, :whole] = keys[:, source, :, :whole]
        values[:, target, :, :, :whole] = values[:, source, :, :, :whole]

    def _new_workspace(self) -> int:
        made = load_library().workspace_new(ctypes.byref(self._model), self._pool.address, PASS_ROWS)
        if not made:
            raise NativeError("There is not enough memory for the workspace of a step: close other programs.")
        return int(made)

    def _describe(self) -> _Model:
        weights = self.weights
        cosine, sine = rotary_tables(weights.base, weights.rotated, self.capacity, weights.factor, weights.factors)
        layers = (_Layer * len(weights.layers))(*(self._layer(layer) for layer in weights.layers))
        self._kept += [cosine, sine, layers]
        return _Model(
            *(len(weights.layers), weights.final_norm.size, weights.heads, weights.key_heads, weights.size),
            *(weights.layers[0].gate.outputs, weights.rotated, weights.halves, self.slots, self.capacity),
            weights.embedding_kind,
            *(weights.epsilon, weights.embedding_scale, weights.residual_scale),
            *(weights.attention_scale or weights.size**-0.5, weights.logit_scale),
            *(weights.embedding.ctypes.data, self._floats(weights.final_norm), cosine.ctypes.data, sine.ctypes.data),
            *(weights.head.address, ctypes.addressof(layers), self.keys.ctypes.data, self.values.ctypes.data),
        )

    def _layer(self, layer: Layer) -> _Layer:
        made = _Layer(window=layer.window)
        for name, *_ in _Layer._fields_[:-1]:
            value: Floats | Matrix | None = getattr(layer, name)
            setattr(made, name, value.address if isinstance(value, Matrix) else self._floats(value))
        return made

    def _floats(self, vector: Floats | None) -> int | None:
        if vector is None:
            return None
        vector = np.ascontiguousarray(vector, dtype=np.float32)
        self._kept.append(vector)
        return vector.ctypes.data

    def __del__(self) -> None:
        if getattr(self, "_workspace", None):
            load_library().workspace_free(self._workspace)
