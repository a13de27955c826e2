"""Map GGUF architectures to config.json and to tensor names in the Hugging Face layout.

A file with an unknown setting or tensor is refused, because ignoring one (a bias, a rotary scaling) would silently
change every output. Only metadata about the file itself is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codespec.errors import ModelError
from codespec.models.gguf.header import Header, Tensor, broken

Json = dict[str, Any]

FACTORS = "rope_freqs.weight"
# Settings without effect on the arithmetic: sizes that the tensors also give, and metadata.
_NOTES = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "rope.scaling.original_context_length")
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_QKV = ("attn_q", "attn_k", "attn_v")
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_LLAMA = {**_NORMS, **_ATTENTION, **_GATED}
_PLAIN = {**_NORMS, **_ATTENTION, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}


class Settings:
    """The architecture settings of a file. Records which of them have been read."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.name = header.text("general.architecture")
        self._seen = {f"{self.name}.{note}" for note in _NOTES}

    def take(self, key: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
        """Return one setting. Raise ModelError if it is negative or of another type, or missing without a default."""
        full = f"{self.name}.{key}"
        self._seen.add(full)
        value = self.header.settings.get(full, default)
        if not isinstance(value, kinds) or isinstance(value, bool) or (isinstance(value, int | float) and value < 0):
            raise broken(self.header.file, f"{full} is missing or has the wrong type")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """Return an integer setting."""
        return int(self.take(key, int, default))

    def real(self, key: str, default: float | None = None) -> float:
        """Return a number setting, rounded to the shortest decimal of its 32-bit value."""
        return float(str(np.float32(self.take(key, (float, int), default))))

    def has(self, key: str) -> bool:
        """Return whether the file has this setting."""
        return f"{self.name}.{key}" in self.header.settings

    def refuse_rest(self) -> None:
        """Raise ModelError if the file has a setting that was not read and would be ignored silently."""
        prefix = f"{self.name}."
        for key in self.header.settings:
            if key.startswith(prefix) and key not in self._seen:
                raise unreadable(self.header, f"its setting {key}")


@dataclass(frozen=True, slots=True)
class Architecture:
    """Conversion rules of one architecture.

    config     adds the architecture's own keys to the common config.json
    layer      a layer's tensor names in the file → in the model, without `.weight` and `.bias`
    biased     names of the tensors with a bias, given config.json
    twisted    whether query and key rows that rotate together are adjacent instead of in two halves
    norm_less  the constant that the file adds to norm weights
    """

    class_name: str
    kind: str
    config: Callable[[Settings, Json], Json]
    layer: Mapping[str, str]
    biased: Callable[[Json], Iterable[str]]
    twisted: bool = False
    norm_less: float = 0.0


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the model: its source in the file, its row order (None: unchanged), and the constant to subtract."""

    name: str
    source: Tensor
    rows: NDArray[np.int64] | None = None
    less: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A conversion: config.json without its token ids, and every weight."""

    config: Json
    weights: list[Weight] = field(default_factory=list)


def unreadable(header: Header, what: str) -> ModelError:
    """Return the ModelError for an intact file with an unsupported feature `what`."""
    return ModelError(
        f"{header.file} can't be converted without a change of the model, because {what} is not known here",
        "take the model's folder in the Hugging Face layout",
    )


def make_plan(header: Header) -> Plan:
    """Plan the conversion of the file's model. Raise ModelError if the result would be a different model."""
    settings = Settings(header)
    known = ARCHITECTURES.get(settings.name)
    if known is None:
        raise ModelError(
            f"{header.file} is of the architecture {settings.name or 'unknown'!r}, which can't be converted",
            f"choose one of {', '.join(ARCHITECTURES)}, or the model's folder in the Hugging Face layout",
        )
    config = known.config(settings, _common(settings))
    settings.refuse_rest()
    config |= {"architectures": [known.class_name], "model_type": known.kind, "dtype": "float32", "use_cache": True}
    return Plan(config, _weights(header, known, config))


def _common(settings: Settings) -> Json:
    header, heads = settings.header, settings.whole("attention.head_count")
    layers, hidden = settings.whole("block_count"), settings.whole("embedding_length")
    embedding = header.tensors.get("token_embd.weight")
    if not 0 < heads <= hidden or not 0 < layers <= 10_000 or embedding is None or embedding.shape[1:] != (hidden,):
        raise broken(header.file, "its sizes do not fit together")
    head = settings.whole("attention.key_length", hidden // heads)
    value = settings.whole("attention.value_length", hidden // heads)
    turned = settings.whole("rope.dimension_count", head)
    if not head == value == turned:
        raise unreadable(header, f"a head of {head} numbers with values of {value}, of which {turned} turn,")
    if settings.whole("expert_count", 0) or settings.whole("expert_used_count", 0):
        raise unreadable(header, "a mixture of experts")
    groups, middle = settings.whole("attention.head_count_kv", heads), settings.whole("feed_forward_length")
    _check_sizes(header, hidden, {"attn_q": heads * head, "attn_k": groups * head, "ffn_up": middle})
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": middle,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": head,
        "max_position_embeddings": settings.whole("context_length"),
        "rope_parameters": _rotary(settings, head),
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }


def _check_sizes(header: Header, hidden: int, rows: Mapping[str, int]) -> None:
    """Raise ModelError unless the sizes in the settings, which are untrusted, match the tensors."""
    for name, count in rows.items():
        tensor = header.tensors.get(f"blk.0.{name}.weight")
        if tensor is not None and tensor.shape != (count, hidden):
            raise broken(header.file, f"{tensor.name} does not have the size in its settings")


def _rotary(settings: Settings, head: int) -> Json:
    rotary: Json = {"rope_theta": settings.real("rope.freq_base", 10000.0), "rope_type": "default"}
    factor = settings.real("rope.scaling.factor", 0.0) or settings.real("rope.scale_linear", 0.0)
    kind = settings.take("rope.scaling.type", str, "linear")
    original = settings.header.whole(f"{settings.name}.rope.scaling.original_context_length")
    if factor not in (0.0, 1.0) and kind != "none":
        if kind not in ("linear", "yarn") or (kind == "yarn" and original is None):
            raise unreadable(settings.header, f"its rotary scaling {kind!r}")
        rotary |= {"rope_type": kind, "factor": factor}
        rotary |= {"original_max_position_embeddings": original} if kind == "yarn" else {}
    if FACTORS in settings.header.tensors:
        if rotary["rope_type"] != "default":
            raise unreadable(settings.header, "a rotary scaling beside factors of its own")
        rotary |= _llama3(settings.header, rotary["rope_theta"], head)
    return rotary


def _llama3(header: Header, base: float, head: int) -> Json:
    """Return the published Llama 3 scaling settings that yield the file's factors (one per frequency)."""
    stored = read_factors(header)
    if stored.size != -(-head // 2):
        raise unreadable(header, "its rotary factors")
    for scale in (8.0, 32.0, 16.0, 4.0):
        values: Json = {"factor": scale, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        values["original_max_position_embeddings"] = 8192
        wanted = 2 * pi * base ** (np.arange(0, head, 2, dtype=np.float64) / head)  # wavelengths
        part = (8192 / wanted - 1.0) / (4.0 - 1.0)
        middle = 1 / ((1 - part) / scale + part)
        factors = np.where(wanted < 8192 / 4.0, 1.0, np.where(wanted > 8192 / 1.0, scale, middle))
        if factors.shape == stored.shape and np.allclose(factors, stored, rtol=1e-5):
            return {"rope_type": "llama3", **values}
    raise unreadable(header, "its rotary factors")


def read_factors(header: Header) -> NDArray[np.float32]:
    """Read the factors of the rotary frequencies. Raise ModelError if they are not 32-bit floats."""
    tensor = header.tensors[FACTORS]
    if tensor.kind != 0 or len(tensor.shape) != 1 or tensor.start + 4 * tensor.shape[0] > header.size:
        raise broken(header.file, "its rotary factors can't be read")
    return np.fromfile(header.file, dtype="<f4", count=tensor.shape[0], offset=tensor.start)


def _weights(header: Header, known: Architecture, config: Json) -> list[Weight]:
    wanted = _wanted(known, config)
    strange = header.tensors.keys() - wanted.keys() - {FACTORS}
    missing = wanted.keys() - header.tensors.keys()
    if strange:
        raise unreadable(header, f"its tensor {min(strange)}")
    if missing:
        raise broken(header.file, f"it lacks {len(missing)} tensors, {min(missing)} for one")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = []
    for name, target in wanted.items():
        path, _, part = name.rpartition(".")
        turning = heads.get(path.rpartition(".")[2]) if known.twisted else None
        rows = None if turning is None else _untwisted(header, header.tensors[name], turning)
        less = known.norm_less if path.endswith("norm") and part == "weight" else 0.0
        weights.append(Weight(target, header.tensors[name], rows, less))
    return weights


def _wanted(known: Architecture, config: Json) -> dict[str, str]:
    """Return the exact set of tensors that the file must hold: name in the file → name in the model."""
    whole = {theirs: ours for theirs, ours in _WHOLE.items() if theirs != "output" or not config["tie_word_embeddings"]}
    biased = set(known.biased(config))
    wanted = {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in whole.items()}
    wanted |= {f"{theirs}.bias": f"{ours}.bias" for theirs, ours in whole.items() if theirs in biased}
    for number in range(config["num_hidden_layers"]):
        for theirs, ours in known.layer.items():
            for part in ("weight", "bias") if theirs in biased else ("weight",):
                wanted[f"blk.{number}.{theirs}.{part}"] = f"model.layers.{number}.{ours}.{part}"
    return wanted


def _untwisted(header: Header, tensor: Tensor, heads: int) -> NDArray[np.int64]:
    """Return the row order that turns [heads, half, 2], in which rows that rotate together are adjacent, into [heads,
    2, half].
    """
    count = tensor.shape[0]
    if not heads or count % (2 * heads):
        raise broken(header.file, f"{tensor.name} does not hold {heads} heads")
    return np.arange(count, dtype=np.int64).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _llama(settings: Settings, config: Json) -> Json:
    tensors = settings.header.tensors
    config["rms_norm_eps"] = settings.real("attention.layer_norm_rms_epsilon")
    return config | {
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
    }


def _qwen2(settings: Settings, config: Json) -> Json:
    config["rms_norm_eps"] = settings.real("attention.layer_norm_rms_epsilon")
    return config | {"hidden_act": "silu", "use_sliding_window": False}


def _qwen3(settings: Settings, config: Json) -> Json:
    return _qwen2(settings, config) | {"attention_bias": False}


def _starcoder2(settings: Settings, config: Json) -> Json:
    """Add StarCoder 2's keys. The file has no window setting, so there is none; published models use 4,096 tokens."""
    config["norm_epsilon"] = settings.real("attention.layer_norm_epsilon")
    return config | {"hidden_act": "gelu_pytorch_tanh", "use_bias": True, "sliding_window": None}


def _gemma(settings: Settings, config: Json) -> Json:
    config["rms_norm_eps"] = settings.real("attention.layer_norm_rms_epsilon")
    return config | {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False, "tie_word_embeddings": True}


def _llama_biases(config: Json) -> Iterable[str]:
    return (*(_ATTENTION if config["attention_bias"] else ()), *(_GATED if config["mlp_bias"] else ()))


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", _llama, _LLAMA, _llama_biases, twisted=True),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", _qwen2, _LLAMA, lambda _: _QKV),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", _qwen3, {**_LLAMA, **_HEAD_NORMS}, lambda _: ()),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM",
        "starcoder2",
        _starcoder2,
        _PLAIN,
        lambda _: (*_PLAIN, "output_norm"),
    ),
    "gemma": Architecture("GemmaForCausalLM", "gemma", _gemma, _LLAMA, lambda _: (), norm_less=1.0),
}
