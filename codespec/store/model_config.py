"""Read a model's config.json: architecture and layers, whether it can be drafted for, and whether its sizes are true.

Unsupported architectures are refused by name before anything is loaded; the loader's own ragged check has the final
say. The layers decide what a rollback costs: keys and values are cut to a length, while a recurrent state is restored
from a checkpoint and the accepted rows are computed again.

Sizes are compared with the headers of the weight files before anything of that size is allocated. If each size is
plausible but their product exceeds the files, the loader refuses the model (`models.model_check`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.errors import Fault, ModelError
from codespec.store.weights import StoredTensor, read_header, weight_files
from codespec.text.tokenizer_json import read_json

Config = Mapping[str, Any]

_WRITES_TEXT = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_RECURRENT_LAYERS = ("mamba", "linear_attention", "recurrent", "conv", "rwkv", "gated_delta", "hybrid")
# Model types with recurrent layers, for configurations that do not list their layers.
_UNLISTED = (
    "bamba", "falcon_h1", "falcon_mamba", "jamba", "lfm2", "mamba", "mamba2", "nemotron_h", "recurrent_gemma", "rwkv",
    "xlstm", "zamba", "zamba2",
)  # fmt: skip
# Sizes in the configurations of the recurrent layers that `models.recurrent` computes; the loader's check has the final
# say.
_GATED_DELTA = ("linear_num_value_heads", "linear_key_head_dim", "linear_conv_kernel_dim")
_SHORT_CONVOLUTION = ("conv_L_cache",)
_CODE = "model_unsuitable"
_QUANTIZED = "quantization_config"
DEQUANTIZED = ("fp8", "mxfp4")  # forms of quantized weights that transformers turns into plain ones while it loads them
_OWN_ATTENTION = ("bloom", "codegen", "gptj", "mpt")  # model types that ignore transformers' attention interface

# Llama-shaped models, whose whole step the native kernels compute: architectures of a GGUF file, types of a folder.
NATIVE_GGUF = ("llama", "qwen2", "qwen3", "granite", "phi3")
NATIVE_TYPES = (*NATIVE_GGUF, "mistral")

HARMLESS = 1 << 16  # sizes up to this are never refused: windows, chunks, positions
_LAYERS = re.compile(r"(?:n|num)(?:_hidden)?_layers?|(?:num_)?(?:en|de)coder_layers")
_EXPERTS = re.compile(r"(?:\w+_)?experts")
_SIZE = re.compile(
    r"(?!\w*(?:chunk|context|ctx|length|param|position|sample|step|token|window))"  # not allocated at that size
    r"(?:(?:n|num|d)_\w+|\w+_(?:sizes?|dims?|rank|heads|features|channels)|width|depth)"
)
_NUMBERED = re.compile(r"(?:^|(?<=\.))(\d+)(?=\.)")

# Names of the kinds of layers, and the settings that count layers and experts.
_SLIDING = ("sliding", "chunked")
_RECURRENT_KINDS = ("mamba", "linear_attention", "recurrent", "conv", "rwkv", "gated_delta", "lightning")
_PURE = ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm")  # model types without any attention
_BOTH = ("falcon_h1",)  # model types with attention and a recurrent state in every layer
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN_COUNTS = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k")


def text_config(config: Config) -> Config:
    """Return the part of a configuration that describes the language model."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else config


def architecture(config: Config) -> str:
    """Return the class name that a model was saved with, else its model type."""
    names = config.get("architectures")
    return str(names[0] if isinstance(names, list) and names else config.get("model_type") or "unknown")


def why_unsuitable(config: Config) -> Fault | None:
    """Return why a model can neither draft nor be drafted for, or None if no reason is found."""
    name, kind = architecture(config), str(text_config(config).get("model_type") or "")
    if config.get("is_encoder_decoder"):
        return Fault(_CODE, f"{name} is an encoder and a decoder", "choose a causal language model")
    if config.get("architectures") and not name.endswith(_WRITES_TEXT):
        return Fault(_CODE, f"{name} does not write text", "choose a causal language model")
    if _has_recurrent(config, kind) and not _runs_recurrent(text_config(config)):
        what = f"{name} has recurrent layers of a kind that can't be rolled back yet"
        return Fault(_CODE, what, "choose a model of attention, gated delta nets or short convolutions")
    method = quantization_of(config).get("quant_method", DEQUANTIZED[0])
    if method not in DEQUANTIZED:
        return Fault(_CODE, f"its weights are quantized as {str(method)[:40]}", "use the model's GGUF file")
    if kind in _OWN_ATTENTION:
        return Fault(_CODE, f"{name} does not use transformers' attention interface", "choose another architecture")
    return None


def quantization_of(config: Config) -> Config:
    """Return the `quantization_config` of a config.json, or of the language model in it; {} if there is none."""
    found = text_config(config).get(_QUANTIZED)
    return found if isinstance(found, Mapping) else {}


def _has_recurrent(config: Config, kind: str) -> bool:
    """Return whether some layers are recurrent: by the list of layers if there is one, else by the model type."""
    listed = text_config(config).get("layer_types")
    if not isinstance(listed, list):
        return kind in _UNLISTED
    return any(word in str(layer) for word in _RECURRENT_LAYERS for layer in listed)


def _runs_recurrent(config: Config) -> bool:
    """Return whether the recurrent layers of a configuration are of a kind that `models.recurrent` computes."""
    return any(all(name in config for name in names) for names in (_GATED_DELTA, _SHORT_CONVOLUTION))


def context_length(config: Config) -> int | None:
    """Return the maximum context of a model in tokens, or None if not stated."""
    for key in ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length"):
        value = text_config(config).get(key)
        if isinstance(value, int):
            return value
    return None


def check_claims(folder: Path) -> list[StoredTensor]:
    """Return the tensors of the weight files. Raises ModelError if corrupt or smaller than config.json claims."""
    tensors = [tensor for file in weight_files(folder) for tensor in read_header(file)]
    numbered = _count_numbered(tensor.name for tensor in tensors)
    widest = max((size for tensor in tensors if tensor.count for size in tensor.shape), default=0)
    stacked = max((tensor.shape[0] for tensor in tensors if tensor.count and len(tensor.shape) > 2), default=0)
    for name, value in _numbers(read_json(folder / "config.json")):
        if _LAYERS.fullmatch(name):
            held, what = numbered, f"{numbered} layers"
        elif _EXPERTS.fullmatch(name):
            held, what = max(numbered, stacked), f"{max(numbered, stacked)} parts of a kind"
        elif _SIZE.fullmatch(name):
            held, what = max(widest, HARMLESS), f"nothing larger than {widest}"
        else:
            continue
        if value > held:
            raise not_held(folder, f"{name} = {value}", what)
    return tensors


def not_held(folder: Path, claim: str, held: str) -> ModelError:
    """Return the error for a size that the weights do not have."""
    return ModelError(
        f"The configuration of {folder} claims {claim}, and its weights hold {held}", "fetch or export the model again"
    )


def _count_numbered(names: Iterable[str]) -> int:
    """Return the largest number of parts of one kind, such as layers.

    `model.layers.7.mlp` belongs to the eighth layer.
    """
    parts: dict[str, set[str]] = defaultdict(set)
    for name in names:
        for match in _NUMBERED.finditer(name):
            parts[name[: match.start()]].add(match[1])
    return max((len(numbers) for numbers in parts.values()), default=0)


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield every number with its key, from nested tables and lists too."""
    for name, value in values.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield from _numbers(item)
            elif isinstance(item, int | float) and not isinstance(item, bool):
                yield name, item


@dataclass(frozen=True, slots=True)
class Layers:
    """Numbers of layers with full attention, a sliding window and a recurrent state, and of experts.

    A layer with both attention and a recurrent state counts twice. `chosen` is the number of experts per token.
    """

    attention: int
    sliding: int = 0
    recurrent: int = 0
    experts: int = 0
    chosen: int = 0

    def __str__(self) -> str:
        kinds = {"attention": self.attention, "sliding": self.sliding, "recurrent": self.recurrent}
        return ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)

    @property
    def rollback(self) -> str:
        """The cost of a rejected draft, as a phrase."""
        if not self.recurrent:
            return "a length"
        return "replayed rows" if not self.attention + self.sliding else "a length and replayed rows"


def read_layers(config: Config) -> Layers:
    """Return the layers that a configuration declares. Unknown settings count as full attention."""
    text = text_config(config)
    count = _number(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    experts, chosen = _number(text, *_EXPERT_COUNTS), _number(text, *_CHOSEN_COUNTS)
    kinds = _kinds(text, count)
    recurrent = sum(any(word in kind for word in _RECURRENT_KINDS) for kind in kinds)
    sliding = sum(any(word in kind for word in _SLIDING) for kind in kinds)
    if text.get("model_type") in _BOTH:
        return Layers(count, 0, count, experts, chosen if experts else 0)
    return Layers(len(kinds) - recurrent - sliding, sliding, recurrent, experts, chosen if experts else 0)


def _kinds(text: Config, count: int) -> list[str]:
    """Return the kind of each layer, from whichever setting a family uses."""
    for key in ("layer_types", "layers_block_type", "block_types"):
        listed = text.get(key)
        if isinstance(listed, list) and listed:
            return [str(kind) for kind in listed]
    if str(text.get("model_type") or "").startswith(_PURE):
        return ["mamba"] * count
    every, place = _number(text, "full_attention_interval", "attn_layer_period"), text.get("attn_layer_offset")
    at = place if isinstance(place, int) else every - 1
    listed = text.get("attn_layer_indices")
    if every > 1 or isinstance(listed, list):
        chosen = listed if isinstance(listed, list) else [n for n in range(count) if n % every == at]
        numbers = {number for number in chosen if isinstance(number, int)}
        return ["attention" if number in numbers else "mamba" for number in range(count)]
    slides = text.get("sliding_window") and text.get("use_sliding_window", True)
    return ["sliding_attention" if slides else "full_attention"] * count


def _number(values: Config, *names: str) -> int:
    candidates = (values.get(name) for name in names)
    return next((value for value in candidates if isinstance(value, int) and not isinstance(value, bool)), 0)
