"""Hybrids in GGUF files: settings of Qwen's gated delta nets and Granite's Mamba2, and the order of Qwen's heads.

A layer's key heads each serve `ratio` value heads. Qwen3-Next's model stores queries, keys, values and gates key head
by key head, and its file stores all queries first, then all keys, and so on. Qwen3.5's model stores value heads by key
head, and its file stores the first value head of every key head, then the second of every one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codespec.models.gguf.header import broken
from codespec.models.gguf.settings import Json, Settings, unreadable

Order = NDArray[np.int64]


def delta_settings(settings: Settings, config: Json) -> Json:
    """Return the sizes of the gated delta nets, and each layer's kind."""
    keys, values = settings.whole("ssm.group_count"), settings.whole("ssm.time_step_rank")
    inner, every = settings.whole("ssm.inner_size"), settings.whole("full_attention_interval", 4)
    if not 0 < keys <= values or values % keys or inner % values or not every:
        raise broken(settings.header.file, "the sizes of its recurrent layers do not fit together")
    layers = config["num_hidden_layers"]
    kinds = ["linear_attention" if (number + 1) % every else "full_attention" for number in range(layers)]
    return {
        "linear_conv_kernel_dim": settings.whole("ssm.conv_kernel"),
        "linear_key_head_dim": settings.whole("ssm.state_size"),
        "linear_value_head_dim": inner // values,
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "layer_types": kinds,
    }


def mamba_settings(settings: Settings, config: Json) -> Json:
    """Return the sizes of the Mamba2 layers, and each layer's kind: those with attention have heads of keys."""
    heads, inner = settings.whole("ssm.time_step_rank"), settings.whole("ssm.inner_size")
    listed = settings.take("attention.head_count_kv", list)
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    if not heads or inner % heads or not inner or inner % hidden or len(listed) != layers:
        raise broken(settings.header.file, "the sizes of its recurrent layers do not fit together")
    return {
        "mamba_d_conv": settings.whole("ssm.conv_kernel"),
        "mamba_d_state": settings.whole("ssm.state_size"),
        "mamba_n_groups": settings.whole("ssm.group_count"),
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_expand": inner // hidden,
        "layer_types": ["attention" if count else "mamba" for count in listed],
    }


def positions(settings: Settings) -> Json:
    """Return how Qwen3.5's frequencies are shared between the positions in a text, or in an image's rows and columns.

    In a text all of them are the same.
    """
    sections = settings.header.items(f"{settings.name}.rope.dimension_sections")
    settings.ignore("rope.dimension_sections")
    if len(sections) != 4 or sections[3] or not all(isinstance(size, int) for size in sections):
        raise unreadable(settings.header, "its sections of positions")
    return {"mrope_section": sections[:3], "mrope_interleaved": True}


def fused_order(config: Json) -> Order:
    """Return the order of Qwen3-Next's queries, keys, values and gates: key head by key head."""
    keys, ratio, key, value = _sizes(config)
    starts = np.cumsum([0, keys * key, keys * key, keys * ratio * value])
    each = (key, key, ratio * value, ratio * value)
    parts = [start + np.arange(keys * size).reshape(keys, size) for start, size in zip(starts, each, strict=True)]
    return np.concatenate(parts, axis=1).reshape(-1)


def value_order(config: Json) -> Order:
    """Return the order of the numbers of Qwen3.5's value heads."""
    return _by_key_head(config, _sizes(config)[3])


def head_order(config: Json) -> Order:
    """Return the order of Qwen3.5's value heads."""
    return _by_key_head(config, 1)


def channel_order(config: Json) -> Order:
    """Return the order of Qwen3.5's queries, keys and values: only the values move."""
    keys, _, key, _ = _sizes(config)
    return np.concatenate([np.arange(2 * keys * key), 2 * keys * key + value_order(config)])


def _by_key_head(config: Json, size: int) -> Order:
    keys, ratio, _, _ = _sizes(config)
    return np.arange(ratio * keys * size, dtype=np.int64).reshape(ratio, keys, size).swapaxes(0, 1).reshape(-1)


def _sizes(config: Json) -> tuple[int, int, int, int]:
    """Return the number of key heads, value heads for each, and the sizes of a key and of a value."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    return keys, values // keys, config["linear_key_head_dim"], config["linear_value_head_dim"]
