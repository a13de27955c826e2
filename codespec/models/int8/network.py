"""A Llama-shaped model with int8 matrices and transformers' call signature: `models.lean` on quantized rows.

Its `Blueprint` (sizes, windows, rotary frequencies) is in the folder's config.json, taken from transformers' own layers
at the conversion, so that a start need not import transformers, which takes seconds.

A layer runs four integer products. Its two norms cost nothing beyond quantizing their rows. The residual stream, rotary
embedding and attention are float32. While a converted folder loads, only packed matrices stay in memory: a thread frees
each matrix before it reads the next. The embedding stays in its file; a step reads a few of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from codespec.errors import ModelError
from codespec.models.attention import Seam
from codespec.models.int8.kernels import Choice
from codespec.models.int8.linear import Int8Linear, quantize, quantize_norm
from codespec.models.int8.recipe import EMBEDDING, HEAD, stream_rotation
from codespec.models.int8.rotation import mix
from codespec.models.lean import HEAD_NORMS, Angles, FusedAttention, LeanNorm, Output
from codespec.models.rowwise import silu_mul
from codespec.models.taps import Taps
from codespec.store.conversions import INT8_RECIPE, int8_recipe
from codespec.store.weights import read_header, read_layout

KEY = "codespec_int8"  # of config.json
MOST = 1 << 48  # upper bound for valid sizes
PACKERS = 2  # threads that pack matrices, the slowest part of a start; each holds one matrix twice
Read = Callable[[str], Tensor]  # returns a converted tensor by name; raises KeyError if it is missing
WEIGHTS = "model.safetensors"  # all weights are in one file
_FORMATS = {"I8": np.int8, "F16": np.float16, "F32": np.float32}


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A Llama-shaped network.

    parameters    parameter count of the model before conversion
    max_length    the longest text in tokens
    scaling       the factor of the attention scores
    rotary_scale  the factor of the rotary embedding's cosines and sines
    most          the largest int8 weight, by magnitude
    windows       each layer's attention window in tokens; 0 for none
    frequencies   the rotary embedding's inverse frequencies [head_size / 2]
    """

    architecture: str
    parameters: int
    vocabulary: int
    max_length: int
    hidden_size: int
    inner_size: int
    heads: int
    kv_heads: int
    head_size: int
    epsilon: float
    scaling: float
    rotary_scale: float
    most: int
    windows: tuple[int, ...]
    frequencies: tuple[float, ...]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.windows)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Blueprint:
        """Parse the output of `write` from a config.json. Raise ModelError if it is missing or invalid."""
        stored = config.get(KEY)
        values = dict(stored) if isinstance(stored, dict) else {}
        lists = {name: values.get(name) for name in ("windows", "frequencies")}
        sound = values.keys() == cls.__dataclass_fields__.keys() and all(isinstance(v, list) for v in lists.values())
        if sound:
            plan = cls(**values | {name: tuple(listed or ()) for name, listed in lists.items()})
            sound = plan._is_sound()
        if not sound:
            raise ModelError(
                "config.json does not describe its int8 weights",
                "remove its folder; the next start converts the model again",
            )
        return plan

    def write(self, config: dict[str, Any]) -> None:
        """Add this description to the content of a config.json."""
        config[KEY] = asdict(self)

    def _is_sound(self) -> bool:
        sizes = (self.parameters, self.vocabulary, self.max_length, self.hidden_size, self.inner_size, self.heads)
        positive = (*sizes, self.kv_heads, self.head_size, self.most)
        reals = (self.epsilon, self.scaling, self.rotary_scale, *self.frequencies)
        return (
            all(type(size) is int and 0 < size < MOST for size in positive)
            and all(type(window) is int and 0 <= window < MOST for window in self.windows)
            and all(type(real) in (int, float) and abs(real) < MOST for real in reals)
            and isinstance(self.architecture, str)
            and 2 * len(self.frequencies) == self.head_size
            and len(self.windows) > 0
            and self.heads % self.kv_heads == 0
        )


def is_converted(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json belongs to a folder that `models.int8.convert` wrote with the current recipe."""
    return int8_recipe(config) == INT8_RECIPE


class LayerSeam(nn.Module):
    """The interface of a layer to attention: its index and its model's seam."""

    def __init__(self, number: int, seam: Seam) -> None:
        super().__init__()
        self.layer_idx = number
        self.codespec_seam = seam


class FixedRotary(nn.Module):
    """The rotary embedding of a blueprint (Su et al. 2021), with transformers' call signature."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.frequencies, self.scale = torch.tensor(plan.frequencies), plan.rotary_scale

    def forward(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine [1, N, size] for positions [1, N]."""
        angles = positions[..., None].float() * self.frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos() * self.scale, angles.sin() * self.scale


class Int8Block(FusedAttention):
    """One decoder layer."""

    def __init__(self, plan: Blueprint, number: int, seam: Seam, read: Read, choice: Choice) -> None:
        super().__init__()
        path = f"model.layers.{number}"
        self.attention = LayerSeam(number, seam)
        self.size, self.heads, self.kv_heads = plan.head_size, plan.heads, plan.kv_heads
        self.scaling, self.window = plan.scaling, plan.windows[number] or None
        hidden, wide, inner = plan.hidden_size, plan.heads * plan.head_size, plan.inner_size
        mixed = wide + 2 * plan.kv_heads * plan.head_size
        self.qkv = read_linear(read, f"{path}.self_attn.qkv", (mixed, hidden), plan.most, choice, normed=True)
        self.out = read_linear(read, f"{path}.self_attn.out", (hidden, wide), plan.most, choice)
        self.gate_up = read_linear(read, f"{path}.mlp.gate_up", (2 * inner, hidden), plan.most, choice, normed=True)
        self.down = read_linear(read, f"{path}.mlp.down", (hidden, inner), plan.most, choice)
        self.kernel, self.floor = choice.kernel, torch.tensor([plan.epsilon * hidden])
        norms = [read_optional(read, f"{path}.self_attn.{name}.weight", (self.size,)) for name in HEAD_NORMS]
        self.head_norms = [LeanNorm(norm, plan.epsilon) for norm in norms if norm is not None]

    def forward(self, rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Run the layer on float32 rows [N, hidden]; cosine and sine are [N, 1, size]."""
        mixed = self.qkv.multiply(quantize_norm(rows, self.floor, self.kernel))
        rows = rows + self.out.multiply(quantize(self.attend(mixed, cosine, sine), self.kernel))
        fed = silu_mul(self.gate_up.multiply(quantize_norm(rows, self.floor, self.kernel)))
        return rows + self.down.multiply(quantize(mix(fed), self.kernel))


class Int8Network(nn.Module):
    """The whole model."""

    def __init__(self, plan: Blueprint, seam: Seam, read: Read, choice: Choice) -> None:
        super().__init__()
        self.embedding = read(EMBEDDING)
        if self.embedding.shape != (plan.vocabulary, plan.hidden_size):
            raise mismatch(EMBEDDING)
        self.angles = Angles(FixedRotary(plan), seam)
        with ThreadPoolExecutor(PACKERS) as pool:
            head = pool.submit(
                read_linear, read, HEAD, (plan.vocabulary, plan.hidden_size), plan.most, choice, normed=True
            )
            made = [pool.submit(Int8Block, plan, number, seam, read, choice) for number in range(plan.layers)]
            self.blocks = nn.ModuleList(block.result() for block in made)
            self.head = head.result()
        self.kernel = choice.kernel
        self.floor = torch.tensor([plan.epsilon * plan.hidden_size])
        self.taps: Taps | None = None

    def forward(self, input_ids: Tensor, position_ids: Tensor, logits_to_keep: Tensor, use_cache: bool) -> Output:
        """Map token ids and positions [1, N] to the logits of the kept rows."""
        rows = self.embedding[input_ids[0]].float()
        cosine, sine = self.angles.at(rows, position_ids)
        for number, block in enumerate(self.blocks):
            rows = block(rows, cosine, sine)
            if self.taps is not None and number in self.taps.layers:  # heads are trained on the unrotated stream
                self.taps.see(number, stream_rotation(rows.shape[1]).turn_back(rows))
        kept = quantize_norm(rows[logits_to_keep], self.floor, self.kernel)
        return Output(self.head.multiply(kept)[None])


def read_linear(
    read: Read, name: str, shape: tuple[int, int], held: int, choice: Choice, normed: bool = False
) -> Int8Linear:
    """Read the linear layer of this name, with weights within ±`held`.

    Raise ModelError if its shape is not `shape`, KeyError if it is missing.
    """
    out = shape[:1]
    weight, scale, bias = read(f"{name}.weight"), read(f"{name}.scale"), read_optional(read, f"{name}.bias", out)
    if weight.shape != shape or scale.shape != out or weight.dtype != torch.int8:
        raise mismatch(name)
    return Int8Linear(weight, scale, bias, choice, normed, held)


def mismatch(name: str) -> ModelError:
    """Return the error for a weight that does not match config.json."""
    return ModelError(f"The weight {name} does not fit config.json", "fetch or export the model again")


def read_optional(read: Read, name: str, shape: tuple[int, ...]) -> Tensor | None:
    """Read the tensor of this name, or return None if it is missing. Raise ModelError if its shape is wrong."""
    try:
        tensor = read(name)
    except KeyError:
        return None
    if tensor.shape != shape:
        raise mismatch(name)
    return tensor


def weights_size(folder: Path) -> int:
    """Return the bytes of memory for a converted folder's weights, excluding the embedding, which stays on disk."""
    return sum(tensor.size for tensor in read_header(folder / WEIGHTS) if tensor.name != EMBEDDING)


def load_network(folder: Path, plan: Blueprint, seam: Seam, choice: Choice) -> Int8Network:
    """Load the network of a converted folder. Raise ModelError if weights are missing or do not fit `plan`."""
    try:
        return Int8Network(plan, seam, reader(folder), choice)
    except KeyError as error:
        raise ModelError(
            f"{folder} lacks the weight {error.args[0]}", "remove the folder; the next start converts the model again"
        ) from error
    except (AssertionError, RuntimeError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"The int8 weights in {folder} do not match each other ({why})",
            "remove the folder; the next start converts the model again",
        ) from error


def reader(folder: Path) -> Read:
    """Return a function that reads a folder's tensors by name.

    Matrices are views of the file, which packing copies; vectors are copies.
    """
    file = folder / WEIGHTS
    layout = {tensor.name: (offset, tensor) for offset, tensor in read_layout(file)}

    def read(name: str) -> Tensor:
        offset, tensor = layout[name]
        form = _FORMATS.get(tensor.dtype)
        if form is None:
            raise ModelError(
                f"{file} stores {name} in an unknown form",
                "remove the folder; the next start converts the model again",
            )
        if len(tensor.shape) > 1:
            return torch.from_numpy(np.memmap(file, form, mode="c", offset=offset, shape=tensor.shape))
        return torch.from_numpy(np.fromfile(file, form, count=tensor.count, offset=offset))

    return read
