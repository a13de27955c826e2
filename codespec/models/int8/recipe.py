"""Convert a Llama-shaped model to int8: rotate its matrices, fold the norms' gains into them, and round them.

A matrix that reads the residual stream is multiplied by the gains of the preceding norm and by the stream's rotation;
one that writes to the stream, by the inverse rotation. The values of each head, and the columns of o_proj that read
them, are rotated too. The columns of down_proj are mixed like its input rows. Each matrix is then rounded with one
scale per output. Nothing is calibrated: on Qwen2.5-Coder-0.5B rotations reduced KL(float32 ‖ int8) from 0.0078 to
0.0036 nat and mixing to 0.0014, and scales from calibrated activations made it worse (lab/LOG.md, 2026-11-25).

Does no file I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from codespec.errors import ModelError
from codespec.models.int8.linear import quantize_weight
from codespec.models.int8.rotation import Rotation, unmix_columns
from codespec.models.int8.source import FloatWeights, read_whole
from codespec.models.lean import HEAD_NORMS
from codespec.models.stored import PIECE, Planned

WORKERS = 2  # layers converted in parallel: each is mostly single-threaded
_Input = TypeVar("_Input")
_Output = TypeVar("_Output")
STREAM_SEED, HEAD_SEED = 0, 1
EMBEDDING, HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head", "model.norm.weight"
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_GATED = ("gate_proj", "up_proj", "down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model's sizes, as stated in its config.json."""

    hidden: int
    layers: int
    head: int
    tied: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Sizes:
        """Read a parsed config.json. Raise ModelError if a size is missing or not a positive integer."""

        def size(name: str) -> int:
            value = config.get(name)
            if type(value) is not int or value < 1:
                raise ModelError(f"{name} = {value!r} in config.json is not a size", "fetch or export the model again")
            return value

        hidden, heads = size("hidden_size"), size("num_attention_heads")
        head = size("head_dim") if config.get("head_dim") is not None else max(1, hidden // heads)
        return cls(hidden, size("num_hidden_layers"), head, bool(config.get("tie_word_embeddings")))


@cache
def stream_rotation(hidden: int) -> Rotation:
    """Return the rotation of the residual stream."""
    return Rotation(hidden, STREAM_SEED)


def check_names(weights: FloatWeights, sizes: Sizes) -> None:
    """Raise ModelError if a weight is missing or unknown to the recipe, or the embedding's width is wrong."""
    needed, known = {EMBEDDING, FINAL_NORM}, {EMBEDDING, FINAL_NORM, f"{HEAD}.weight"}
    if not sizes.tied:
        needed.add(f"{HEAD}.weight")
    for number in range(sizes.layers):
        parts = [f"self_attn.{name}" for name in _PROJECTIONS] + [f"mlp.{name}" for name in _GATED]
        for part in parts:
            needed.add(f"{layer_path(number)}.{part}.weight")
            known.add(f"{layer_path(number)}.{part}.bias")
        needed |= {f"{layer_path(number)}.{name}.weight" for name in NORMS}
        known |= {f"{layer_path(number)}.self_attn.{name}.weight" for name in HEAD_NORMS}
    present = set(weights.shapes)
    if strange := present - needed - known:
        raise ModelError(f"The weight {min(strange)} is unknown to the int8 conversion", "use dtype bfloat16")
    if missing := needed - present:
        raise ModelError(f"The model lacks the weight {min(missing)}", "fetch or export it again")
    if weights.shapes[EMBEDDING][1:] != (sizes.hidden,):
        raise ModelError(
            f"{EMBEDDING} is not {sizes.hidden} wide, contrary to config.json", "fetch or export the model again"
        )


def plan_tensors(weights: FloatWeights, sizes: Sizes) -> list[Planned]:
    """Return every converted tensor, in the order of `convert_tensors`."""
    shapes = weights.shapes
    vocabulary, hidden = shapes[EMBEDDING]
    planned: list[Planned] = [(EMBEDDING, torch.float16, (vocabulary, hidden))]
    for number in range(sizes.layers):
        for name, sources in fused_groups(number).items():
            rows, columns = sum(shapes[f"{source}.weight"][0] for source in sources), shapes[f"{sources[0]}.weight"][1]
            biased = any(f"{source}.bias" in shapes for source in sources)
            planned += [(f"{name}.weight", torch.int8, (rows, columns)), (f"{name}.scale", torch.float32, (rows,))]
            planned += [(f"{name}.bias", torch.float32, (rows,))] if biased else []
        norms = (f"{layer_path(number)}.self_attn.{name}.weight" for name in HEAD_NORMS)
        planned += [(name, torch.float32, shapes[name]) for name in norms if name in shapes]
    head = shapes.get(f"{HEAD}.weight", (vocabulary, hidden))
    return [*planned, (f"{HEAD}.weight", torch.int8, head), (f"{HEAD}.scale", torch.float32, head[:1])]


def convert_tensors(weights: FloatWeights, sizes: Sizes, most: int) -> Generator[tuple[str, Tensor], None, None]:
    """Yield the converted tensors, large ones in pieces of rows; int8 weights are within ±`most`."""
    form = _Rotated(weights, sizes, most)
    for piece in ahead(form.embed, weights.pieces(EMBEDDING)):
        yield EMBEDDING, piece
    for tensors in ahead(lambda number: list(_layer_tensors(weights, number, form)), range(sizes.layers)):
        yield from tensors
    scales = []
    for codes, scale in form.head(f"{HEAD}.weight" if f"{HEAD}.weight" in weights.shapes else EMBEDDING):  # or tied
        yield f"{HEAD}.weight", codes
        scales.append(scale)
    yield f"{HEAD}.scale", torch.cat(scales)


def ahead(make: Callable[[_Input], _Output], inputs: Iterable[_Input]) -> Iterator[_Output]:
    """Call `make` on every input in WORKERS threads and yield the results in order.

    At most WORKERS results are computed ahead of the caller, which bounds memory.
    """
    with ThreadPoolExecutor(WORKERS) as pool:
        pending: deque[Future[_Output]] = deque()
        for item in inputs:
            if len(pending) == WORKERS:
                yield pending.popleft().result()
            pending.append(pool.submit(make, item))
        while pending:
            yield pending.popleft().result()


def _layer_tensors(weights: FloatWeights, number: int, form: _Rotated) -> Iterator[tuple[str, Tensor]]:
    for name, sources in fused_groups(number).items():
        rounded = [part for source in sources for part in form.rows(source)]
        yield f"{name}.weight", torch.cat([codes for codes, _ in rounded])
        yield f"{name}.scale", torch.cat([scale for _, scale in rounded])
        if any(f"{source}.bias" in weights.shapes for source in sources):
            yield f"{name}.bias", torch.cat([_bias(weights, source, form) for source in sources])
    for name in (f"{layer_path(number)}.self_attn.{norm}.weight" for norm in HEAD_NORMS):
        if name in weights.shapes:
            yield name, read_whole(weights, name)


def _bias(weights: FloatWeights, source: str, form: _Rotated) -> Tensor:
    """Return the bias of a matrix, or zeros if it has none."""
    if f"{source}.bias" not in weights.shapes:
        return torch.zeros(weights.shapes[f"{source}.weight"][0])
    return form.bias(source, read_whole(weights, f"{source}.bias"))


class _Rotated:
    """Rotates float weights, folds the norms' gains into them, and rounds them within ±`most`."""

    def __init__(self, weights: FloatWeights, sizes: Sizes, most: int) -> None:
        self.weights, self.most = weights, most
        self.stream, self.heads = stream_rotation(sizes.hidden), Rotation(sizes.head, HEAD_SEED)

    def embed(self, rows: Tensor) -> Tensor:
        """Return rows of the embedding in its format."""
        return self.stream.turn(rows).half()

    def rows(self, source: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a matrix as int8 rows and their scales, in pieces.

        A matrix that writes to the stream is held whole in float32, because each row of its result depends on all rows.
        """
        name, (layer, _, part) = f"{source}.weight", source.rsplit(".", 2)
        if part in ("o_proj", "down_proj"):
            matrix = read_whole(self.weights, name, self._head_columns if part == "o_proj" else unmix_columns)
            for columns in matrix.split(max(1, PIECE // len(matrix)), dim=1):
                columns.copy_(self.stream.turn_outputs(columns))
            for rows in matrix.split(max(1, PIECE // matrix.shape[1])):
                yield quantize_weight(rows, self.most)
            return
        gains = read_whole(self.weights, f"{layer}.{NORMS[part in _GATED]}.weight")
        pieces: Iterable[Tensor] = self.weights.pieces(name)
        if part == "v_proj":
            heads = read_whole(self.weights, name).split(len(self.heads.signs))
            pieces = [torch.cat([self.heads.turn_outputs(head) for head in heads])]
        for piece in pieces:
            yield quantize_weight(self.stream.turn(piece * gains), self.most)

    def head(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the output head as int8 rows and their scales, in pieces."""
        gains = read_whole(self.weights, FINAL_NORM)
        return ahead(
            lambda piece: quantize_weight(self.stream.turn(piece * gains), self.most), self.weights.pieces(name)
        )

    def bias(self, source: str, bias: Tensor) -> Tensor:
        """Return the bias of a matrix, rotated like its output."""
        part = source.rpartition(".")[2]
        if part == "v_proj":
            return self.heads.turn(bias.view(-1, len(self.heads.signs))).reshape(-1)
        return self.stream.turn(bias) if part in ("o_proj", "down_proj") else bias

    def _head_columns(self, rows: Tensor) -> Tensor:
        """Rotate rows [N, heads * size] of o_proj with the rotation of each head's values."""
        return self.heads.turn(rows.view(len(rows), -1, len(self.heads.signs))).view(rows.shape)


def layer_path(number: int) -> str:
    return f"model.layers.{number}"


def fused_groups(number: int) -> dict[str, tuple[str, ...]]:
    """Return the converted matrices of a layer, each with the projections that it fuses."""
    attention, mlp = f"{layer_path(number)}.self_attn", f"{layer_path(number)}.mlp"
    return {
        f"{attention}.qkv": tuple(f"{attention}.{name}" for name in _PROJECTIONS[:3]),
        f"{attention}.out": (f"{attention}.o_proj",),
        f"{mlp}.gate_up": (f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        f"{mlp}.down": (f"{mlp}.down_proj",),
    }
