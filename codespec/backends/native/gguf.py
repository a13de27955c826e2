"""A GGUF file for the native kernels: its tensors, and its settings as the shape of a model."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass

from codespec.backends.gguf.header import Header
from codespec.backends.gguf.settings import LONG, Settings
from codespec.backends.native.weights import Shape, Stored, refused


def _granite(settings: Settings) -> dict[str, float]:
    return {
        "embedding_scale": settings.real("embedding_scale", 1.0),
        "residual_scale": settings.real("residual_scale", 1.0),
        "attention_scale": settings.real("attention.scale", 0.0),
        "logit_scale": 1 / settings.real("logit_scale", 1.0),
    }


def _window(settings: Settings) -> dict[str, float]:
    return {"window": settings.whole("attention.sliding_window", 0)}


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture. Files of `twisted` ones hold the rows of queries and keys as adjacent pairs."""

    twisted: bool = False
    more: Callable[[Settings], dict[str, float]] = lambda settings: {}


# The names are those of `codespec.store.model_config.NATIVE_GGUF`.
FAMILIES = {
    "llama": Family(twisted=True),
    "qwen2": Family(),
    "qwen3": Family(),
    "granite": Family(twisted=True, more=_granite),
    "phi3": Family(more=_window),
}


def read_shape(header: Header) -> Shape:
    """Read the settings of a file. Raises ModelError for what the kernels do not compute."""
    settings = Settings(header)
    family = FAMILIES.get(settings.name)
    if family is None:
        raise refused(header.file, f"the architecture {settings.name!r}")
    hidden, heads = settings.whole("embedding_length"), settings.same("attention.head_count", 1)
    size = settings.whole("attention.key_length", hidden // max(heads, 1))
    scaling = settings.take("rope.scaling.type", str, "none" if family.more is _window else "linear")
    factor = settings.real("rope.scaling.factor", 1.0) or settings.real("rope.scale_linear", 1.0) or 1.0
    factor = 1.0 if scaling == "none" else factor
    if LONG in header.tensors or (factor != 1.0 and scaling != "linear"):
        raise refused(header.file, f"the rotary scaling {scaling!r}")
    settings.ignore("attention.value_length", "rope.scaling.factor", "rope.scale_linear", "expert_count")
    if settings.whole("attention.value_length", size) != size or settings.whole("expert_count", 0):
        raise refused(header.file, "its heads or experts")
    shape = Shape(
        layers=settings.whole("block_count"),
        hidden=hidden,
        inner=settings.same("feed_forward_length", 0),
        heads=heads,
        key_heads=settings.same("attention.head_count_kv", heads),
        size=size,
        rotated=settings.whole("rope.dimension_count", size),
        context=settings.whole("context_length"),
        base=settings.real("rope.freq_base", 10000.0),
        factor=factor,
        epsilon=settings.real("attention.layer_norm_rms_epsilon"),
        halves=not family.twisted,
        **family.more(settings),  # type: ignore[arg-type]
    )
    settings.refuse_rest()
    return shape


def map_tensors(header: Header) -> dict[str, Stored]:
    """Map a file and return its tensors by name."""
    with header.file.open("rb") as stream:
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return {name: Stored(tensor.shape, tensor.kind, tensor.start, data) for name, tensor in header.tensors.items()}
