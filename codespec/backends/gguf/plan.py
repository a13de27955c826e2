"""Plan the conversion of a GGUF file: its config.json, and the source of every weight in the Hugging Face layout.

A file with an unknown setting or tensor is refused, because ignoring one (a bias, a rotary scaling) would silently
change every output. Only metadata about the file itself is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from codespec.backends.gguf.architectures import ARCHITECTURES, Architecture, Stack
from codespec.backends.gguf.header import Header, Tensor, broken
from codespec.backends.gguf.settings import FACTORS, LONG, SHORT, Json, Settings, read_rotary, unreadable
from codespec.errors import ModelError

_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_SOFTMAX = 1  # code of a router's function; a file without this setting uses softmax, too


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the model.

    sources  tensors of the file whose rows it holds
    shape    in the model
    rows     the order of the sources' rows, numbered through all sources (None: unchanged)
    less     a constant to subtract
    columns  the order of the columns (None: unchanged)
    rate     whether to store the logarithm of the negated values
    turned   the number of rows per matrix to transpose (0: none)
    """

    name: str
    sources: tuple[Tensor, ...]
    shape: tuple[int, ...]
    rows: NDArray[np.int64] | None = None
    less: float = 0.0
    columns: NDArray[np.int64] | None = None
    rate: bool = False
    turned: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A conversion: config.json without its token ids, and every weight."""

    config: Json
    weights: list[Weight] = field(default_factory=list)


def make_plan(header: Header) -> Plan:
    """Plan the conversion of the file's model. Raise ModelError if the result would be a different model."""
    settings = Settings(header)
    known = ARCHITECTURES.get(settings.name)
    if known is None:
        raise ModelError(
            f"{header.file} has the architecture {settings.name or 'unknown'!r}, which can't be converted",
            f"use the model's folder in the Hugging Face layout (GGUF files: {', '.join(ARCHITECTURES)})",
        )
    saved = {"architectures": [known.class_name], "model_type": known.kind, "dtype": "float32", "use_cache": True}
    config = saved | known.config(settings, _common(settings, known))
    settings.refuse_rest()
    return Plan(config, _weights(header, known, config))


def _common(settings: Settings, known: Architecture) -> Json:
    header, heads = settings.header, settings.whole("attention.head_count")
    extra = settings.whole("nextn_predict_layers", 0)  # layers after the model's own, for drafting only
    layers, hidden = settings.whole("block_count") - extra, settings.whole("embedding_length")
    embedding = header.tensors.get("token_embd.weight")
    if not 0 < heads <= hidden or not 0 < layers <= 10_000 or embedding is None or embedding.shape[1:] != (hidden,):
        raise broken(header.file, "its sizes do not fit together")
    head = settings.whole("attention.key_length", hidden // heads)
    value = settings.whole("attention.value_length", hidden // heads)
    rotated = settings.whole("rope.dimension_count", head)
    if head != value or not (rotated == head or (known.partial and 0 < rotated < head)):
        raise unreadable(header, f"heads of size {head} with values of size {value} and {rotated} rotated dimensions")
    if not any("exps" in stack.sources[0] for stack in known.stacks) and (
        settings.whole("expert_count", 0) or settings.whole("expert_used_count", 0)
    ):
        raise unreadable(header, "a mixture of experts")
    if settings.whole("expert_gating_func", _SOFTMAX) != _SOFTMAX:
        raise unreadable(header, "its choice of experts")
    groups = settings.same("attention.head_count_kv", heads)
    middle = settings.whole("feed_forward_length", settings.whole("expert_feed_forward_length", 0) or None)
    q, k = heads * head, groups * head
    sizes = {"attn_q": q, "attn_k": k, "ffn_up": middle}
    sizes |= {} if known.delta else {"attn_qkv": q + 2 * k}
    _check_sizes(header, hidden, {name: size * (1 + (name in known.doubled)) for name, size in sizes.items()})
    part = {} if rotated == head else {"partial_rotary_factor": rotated / head}
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": middle,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": head,
        "max_position_embeddings": settings.whole("context_length"),
        "rope_parameters": read_rotary(settings, rotated) | part,
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }


def _check_sizes(header: Header, hidden: int, rows: Mapping[str, int]) -> None:
    """Raise ModelError unless the sizes in the settings, which are untrusted, match the tensors."""
    for name, count in rows.items():
        tensor = header.tensors.get(f"blk.0.{name}.weight")
        if tensor is not None and tensor.shape != (count, hidden):
            raise broken(header.file, f"{tensor.name} does not have the size in its settings")


def _weights(header: Header, known: Architecture, config: Json) -> list[Weight]:
    wanted, stacks = _wanted(known, config), _stacks(header, known, config)
    extra = header.whole(f"{header.text('general.architecture')}.nextn_predict_layers")
    used = {source for _, sources, _ in stacks for source in sources}
    drafting = {name for name in header.tensors if _layer_number(name) >= config["num_hidden_layers"] and extra}
    strange = header.tensors.keys() - wanted.keys() - used - drafting - {FACTORS, LONG, SHORT}
    missing = (wanted.keys() | used) - header.tensors.keys()
    if strange:
        raise unreadable(header, f"its tensor {min(strange)}")
    if missing:
        raise broken(header.file, f"it lacks {len(missing)} tensors (first: {min(missing)})")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = []
    for name, target in wanted.items():
        path, _, part = name.rpartition(".")
        tensor, turning = header.tensors[name], heads.get(path.rpartition(".")[2]) if known.twisted else None
        rows = None if turning is None else _untwisted(header, tensor, turning)
        less = known.norm_less if path.endswith("norm") and part == "weight" else 0.0
        weights.append(Weight(target, (tensor,), tensor.shape, rows, less))
    return [*weights, *(_stacked(header, name, sources, stack, config) for name, sources, stack in stacks)]


def _layer_number(name: str) -> int:
    """Return the number of a tensor's layer, or -1 if it belongs to none."""
    number = name.split(".")[1] if name.startswith("blk.") else ""
    return int(number) if number.isdecimal() else -1


def _wanted(known: Architecture, config: Json) -> dict[str, str]:
    """Return the exact set of tensors that the file must hold: name in the file → name in the model."""
    whole = {theirs: ours for theirs, ours in _WHOLE.items() if theirs != "output" or not config["tie_word_embeddings"]}
    biased = set(known.biased(config))
    wanted = {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in whole.items()}
    wanted |= {f"{theirs}.bias": f"{ours}.bias" for theirs, ours in whole.items() if theirs in biased}
    for number in range(config["num_hidden_layers"]):
        more = {} if _is_delta(known, config, number) else known.full
        for theirs, ours in {**known.layer, **more}.items():
            for part in ("weight", "bias") if theirs in biased else ("weight",):
                wanted[f"blk.{number}.{theirs}.{part}"] = f"model.layers.{number}.{ours}.{part}"
    return wanted


def _stacks(header: Header, known: Architecture, config: Json) -> list[tuple[str, tuple[str, ...], Stack]]:
    """Return every stack with its name in the model and its sources."""
    stacks = []
    for number in range(config["num_hidden_layers"]):
        for stack in (*known.stacks, *(known.delta if _is_delta(known, config, number) else ())):
            sources = tuple(f"blk.{number}.{source}" for source in stack.sources)
            stacks.append((f"model.layers.{number}.{stack.name}", sources, stack))
    return stacks


def _is_delta(known: Architecture, config: Json, number: int) -> bool:
    """Return whether a layer is recurrent."""
    return bool(known.delta) and config["layer_types"][number] == "linear_attention"


def _ordered(header: Header, name: str, tensors: tuple[Tensor, ...], stack: Stack, config: Json) -> Weight:
    """Return a weight with reordered rows or columns, or with other dimensions than in the file."""
    shape = tensors[0].shape
    rows = sum(tensor.shape[0] for tensor in tensors)
    order = None if stack.order is None else stack.order(config)
    wanted = shape[-1] if stack.columns else rows
    if any(tensor.shape[1:] != shape[1:] for tensor in tensors) or (order is not None and len(order) != wanted):
        raise broken(header.file, f"{tensors[0].name} does not have the size in its settings")
    out = (rows, *((1,) if stack.kernel else ()), *shape[1:])
    by_row, by_column = (None, order) if stack.columns else (order, None)
    return Weight(name, tensors, out, by_row, columns=by_column, rate=stack.rate)


def _stacked(header: Header, name: str, sources: tuple[str, ...], stack: Stack, config: Json) -> Weight:
    """Return the weight that holds the rows of all sources, expert by expert unless the stack has an order."""
    tensors = tuple(header.tensors[source] for source in sources)
    shape, count = tensors[0].shape, len(tensors)
    if stack.order is not None or stack.kernel or stack.rate:
        return _ordered(header, name, tensors, stack, config)
    if any(tensor.shape != shape for tensor in tensors):
        raise broken(header.file, f"{tensors[0].name} and {tensors[-1].name} differ in size")
    if stack.row:
        return Weight(name, tensors, (1, prod(shape)))
    # A matrix of an expert has `shape[-2]` rows; a bias has one value for each of them.
    is_bias = sources[0].endswith("bias")
    each = shape[-1] if is_bias or len(shape) == 1 else shape[-2]
    whole = prod(shape) if is_bias or len(shape) == 1 else prod(shape[:-1])
    order = np.arange(count * whole, dtype=np.int64).reshape(count, whole // each, each)
    order = order.transpose(1, 2, 0) if stack.woven else order.transpose(1, 0, 2)
    ends = (each * count,) if is_bias or len(shape) == 1 else (each * count, shape[-1])
    out = (*shape[: len(shape) - len(ends)], *(reversed(ends) if stack.transposed else ends))
    return Weight(name, tensors, out, order.reshape(-1), turned=each * count if stack.transposed else 0)


def _untwisted(header: Header, tensor: Tensor, heads: int) -> NDArray[np.int64]:
    """Return the row order that turns [heads, half, 2], in which rows that rotate together are adjacent, into [heads,
    2, half].
    """
    count = tensor.shape[0]
    if not heads or count % (2 * heads):
        raise broken(header.file, f"{tensor.name} does not hold {heads} heads")
    return np.arange(count, dtype=np.int64).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
