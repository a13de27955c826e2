"""Read a model folder's configuration and the headers of its weight files, and reject unsuitable or corrupt models.

Sizes stated in config.json and in the headers are checked against the files before memory of that size is allocated.
Checks that need the loaded model are in `backends.torch.model_check`.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.errors import Fault, ModelError
from codespec.files import open_regular, parse_json, read_json

Config = Mapping[str, Any]

_WRITES_TEXT = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
# Parts of the names of layer types in configurations.
_RECURRENT = ("mamba", "linear_attention", "recurrent", "conv", "rwkv", "gated_delta", "hybrid", "lightning")
_SLIDING = ("sliding", "chunked")
# Model types with recurrent layers whose configurations do not list the layers.
_UNLISTED = (
    "bamba", "falcon_h1", "falcon_mamba", "jamba", "lfm2", "mamba", "mamba2", "nemotron_h", "recurrent_gemma", "rwkv",
    "xlstm", "zamba", "zamba2",
)  # fmt: skip
# Settings of the recurrent layers in `backends.torch.recurrent_layers`: a configuration of each kind has all of them.
_GATED_DELTA = ("linear_num_value_heads", "linear_key_head_dim", "linear_conv_kernel_dim")
_SHORT_CONVOLUTION = ("conv_L_cache",)
_CODE = "model_unsuitable"
_QUANTIZED = "quantization_config"
DEQUANTIZED = ("fp8", "mxfp4")  # formats of quantized weights that transformers converts to floats while loading
_OWN_ATTENTION = ("bloom", "codegen", "gptj", "mpt")  # model types that ignore transformers' attention interface

# Models that the native kernels compute without torch: architectures of GGUF files, and model types of folders.
NATIVE_GGUF = ("llama", "qwen2", "qwen3", "granite", "phi3")
NATIVE_TYPES = (*NATIVE_GGUF, "mistral")

HARMLESS = 1 << 16  # sizes up to this one are accepted, even if the weights are smaller
_LAYERS = re.compile(r"(?:n|num)(?:_hidden)?_layers?|(?:num_)?(?:en|de)coder_layers")
_EXPERTS = re.compile(r"(?:\w+_)?experts")
_SIZE = re.compile(
    r"(?!\w*(?:chunk|context|ctx|length|param|position|sample|step|token|window))"  # nothing of that size is allocated
    r"(?:(?:n|num|d)_\w+|\w+_(?:sizes?|dims?|rank|heads|features|channels)|width|depth)"
)
_NUMBERED = re.compile(r"(?:^|(?<=\.))(\d+)(?=\.)")

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN_COUNTS = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k")

_MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors format
_MAX_DIMENSIONS = 64  # of a tensor, as in torch; the product of a million sizes would take hours
# Constants in old checkpoints, which are not parameters: rotary frequencies and causal masks.
_BUFFER = re.compile(r"(^|\.)(inv_freq|masked_bias|(attn|attention)\.bias)$")
# Bits per number. The libraries that load the files know no other formats.
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_SCALES = ("_scale_inv", "_scales")  # ends of the names of scales of fp8 and mxfp4 weights
_MXFP4 = "_blocks"  # end of the names of mxfp4 weights, which have two numbers in each byte
_HEADS = ("lm_head.weight", "embed_out.weight")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor, as described in the header of a weight file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Size of the tensor in bytes, or -1 if its number format is unknown."""
        return self.count * _BITS[self.dtype] // 8 if self.dtype in _BITS else -1

    @property
    def is_buffer(self) -> bool:
        """Whether the tensor is a constant, not a parameter. A one-dimensional bias is always a parameter."""
        return _BUFFER.search(self.name) is not None and (len(self.shape) > 1 or not self.name.endswith(".bias"))


Layout = list[tuple[int, StoredTensor]]  # tensors, each with the offset of its first byte


@dataclass(frozen=True, slots=True)
class Weights:
    """The number of a model's parameters, and the most common number format among them."""

    parameters: int  # tied ones are counted once
    dtype: str  # for example "BF16"


def read_weights(folder: Path, *, tied: bool) -> Weights:
    """Count the parameters in a folder's files, `tied` layers once. Raises ModelError for corrupt files."""
    tensors = [tensor for file in weight_files(folder) for tensor in read_header(file) if not tensor.is_buffer]
    if tied and any(tensor.name.endswith(_EMBEDDINGS) for tensor in tensors):
        tensors = [tensor for tensor in tensors if not tensor.name.endswith(_HEADS)]
    by_dtype: Counter[str] = Counter()
    for tensor in tensors:
        if not tensor.name.endswith(_SCALES):
            by_dtype[tensor.dtype] += tensor.count * (2 if tensor.name.endswith(_MXFP4) else 1)
    if not by_dtype.total():
        raise ModelError(f"The weight files of {folder} contain no parameters", "download or export the model again")
    return Weights(by_dtype.total(), by_dtype.most_common(1)[0][0])


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files named in the index, else model.safetensors, else all *.safetensors. Raises ModelError."""
    index = read_json(folder / "model.safetensors.index.json").get("weight_map")
    if isinstance(index, dict) and index:
        names = sorted(set(map(str, index.values())))
        strange = next((name for name in names if Path(name).name != name), None)
        if strange is not None:
            what = f"The index of {folder} names {strange!r}, which is not a file in that folder"
            raise ModelError(what, "download the model again")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder} has no *.safetensors weights", "convert the model to safetensors (pickled weights are not read)"
        )
    return files


def read_header(file: Path) -> list[StoredTensor]:
    """Return the tensors of a weight file. Raises ModelError for an unreadable, truncated or corrupt file."""
    return [tensor for _, tensor in read_layout(file)]


def read_layout(file: Path) -> Layout:
    """Return a weight file's tensors and their file offsets. Raises ModelError unless the tensors fill the file."""
    try:
        with open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if length > min(_MAX_HEADER, size - 8):
                raise ValueError("the header is longer than the file")
            header = parse_json(stream.read(length))
        entries = [_entry(name, entry) for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        why = error.strerror or error
        raise ModelError(f"{file} can't be read ({why})", "download or export the model again") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{file} is truncated or corrupt", "download or export the model again") from error
    at = 0
    for start, end, tensor in sorted(entries, key=lambda entry: entry[:2]):
        if start != at or end - start != tensor.size:
            raise ModelError(f"{file} is corrupt at tensor {tensor.name[:80]!r}", "download or export the model again")
        at = end
    if size != 8 + length + at:
        raise ModelError(f"{file} is truncated or corrupt", "download or export the model again")
    return [(8 + length + start, tensor) for start, _, tensor in entries]


def _entry(name: str, entry: Any) -> tuple[int, int, StoredTensor]:
    start, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError("the tensor has too many dimensions")
    if not all(type(number) is int and 0 <= number < 1 << 60 for number in (start, end, *shape)):
        raise ValueError("an offset or a dimension is not a whole number")
    return start, end, StoredTensor(name, str(entry["dtype"]), shape)


def text_config(config: Config) -> Config:
    """Return the settings of the language model, in which entries of `text_config` override top-level entries."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else config


def architecture(config: Config) -> str:
    """Return the class name in a configuration ("LlamaForCausalLM"), else the model type, else "unknown"."""
    names = config.get("architectures")
    return str(names[0] if isinstance(names, list) and names else config.get("model_type") or "unknown")


def why_unsuitable(config: Config) -> Fault | None:
    """Return why a model is unsuitable as a target or drafter, or None if its configuration shows no reason."""
    name, text = architecture(config), text_config(config)
    if config.get("is_encoder_decoder"):
        return Fault(_CODE, f"{name} is an encoder-decoder model", "choose a causal language model")
    if config.get("architectures") and not name.endswith(_WRITES_TEXT):
        return Fault(_CODE, f"{name} does not generate text", "choose a causal language model")
    kinds = _listed(text)
    is_recurrent = text.get("model_type") in _UNLISTED if kinds is None else any(map(_is_recurrent, kinds))
    if is_recurrent and not any(all(name in text for name in names) for names in (_GATED_DELTA, _SHORT_CONVOLUTION)):
        what = f"{name} has recurrent layers of a kind that can't be rolled back yet"
        return Fault(_CODE, what, "choose a model with attention, gated delta nets or short convolutions")
    method = quantization_of(config).get("quant_method", DEQUANTIZED[0])
    if method not in DEQUANTIZED:
        return Fault(_CODE, f"{name} has weights quantized as {str(method)[:40]}", "use the model's GGUF file")
    if text.get("model_type") in _OWN_ATTENTION:
        return Fault(_CODE, f"{name} does not use transformers' attention interface", "choose another architecture")
    return None


def quantization_of(config: Config) -> Config:
    """Return the `quantization_config` of a model configuration, or {} if there is none."""
    found = text_config(config).get(_QUANTIZED)
    return found if isinstance(found, Mapping) else {}


def _is_recurrent(kind: str) -> bool:
    return any(word in kind for word in _RECURRENT)


def _listed(text: Config) -> list[str] | None:
    """Return the type of each layer, as listed in the configuration, or None if the configuration lists no types."""
    lists = (text.get(key) for key in ("layer_types", "layers_block_type", "block_types"))
    return next(([str(kind) for kind in listed] for listed in lists if isinstance(listed, list) and listed), None)


def context_length(config: Config) -> int | None:
    """Return a model's maximum context in tokens, or None if the configuration does not state a length."""
    keys = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length")
    return first_number(text_config(config), *keys) or None


def check_claims(folder: Path) -> list[StoredTensor]:
    """Return a folder's tensors; raise ModelError if config.json states more layers or experts, or larger sizes."""
    tensors = [tensor for file in weight_files(folder) for tensor in read_header(file)]
    numbered = _count_numbered(tensor.name for tensor in tensors)
    widest = max((size for tensor in tensors if tensor.count for size in tensor.shape), default=0)
    stacked = max((tensor.shape[0] for tensor in tensors if tensor.count and len(tensor.shape) > 2), default=0)
    for name, value in _numbers(read_json(folder / "config.json")):
        if _LAYERS.fullmatch(name):
            held, what = numbered, f"{numbered} layers"
        elif _EXPERTS.fullmatch(name):
            held, what = max(numbered, stacked), f"at most {max(numbered, stacked)} experts"
        elif _SIZE.fullmatch(name):
            held, what = max(widest, HARMLESS), f"no size above {widest}"
        else:
            continue
        if value > held:
            raise not_held(folder, f"{name} = {value}", what)
    return tensors


def not_held(folder: Path, claim: str, held: str) -> ModelError:
    """Return the error for a size in config.json that exceeds the sizes of the weights."""
    what = f"The configuration of {folder} states {claim}, but its weights have {held}"
    return ModelError(what, "download or export the model again")


def _count_numbered(names: Iterable[str]) -> int:
    """Return the length of the longest numbered list in tensor names, such as `layers` in `model.layers.7.mlp`."""
    parts: dict[str, set[str]] = defaultdict(set)
    for name in names:
        for match in _NUMBERED.finditer(name):
            parts[name[: match.start()]].add(match[1])
    return max((len(numbers) for numbers in parts.values()), default=0)


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield each number in a configuration with its key, including numbers in nested objects and lists."""
    for name, value in values.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield from _numbers(item)
            elif isinstance(item, int | float) and not isinstance(item, bool):
                yield name, item


def describe_layers(config: Config) -> str:
    """Return a phrase that describes a model's layers, its experts and the cost of rolling back a rejected draft."""
    text = text_config(config)
    counts = Counter(map(_kind, _listed(text) or _unlisted(text)))
    layers = ", ".join(f"{counts[kind]} {kind}" for kind in ("attention", "sliding", "recurrent") if counts[kind])
    experts, chosen = first_number(text, *_EXPERT_COUNTS), first_number(text, *_CHOSEN_COUNTS)
    mixture = f", {experts} experts ({chosen} for each token)" if experts else ""
    cost = "a length and replayed rows" if counts["recurrent"] else "a length"
    return f"layers: {layers}{mixture}, a rollback costs {cost}"


def _kind(layer: str) -> str:
    sliding = "sliding" if any(word in layer for word in _SLIDING) else "attention"
    return "recurrent" if _is_recurrent(layer) else sliding


def _unlisted(text: Config) -> list[str]:
    count = first_number(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if (every := first_number(text, "full_attention_interval")) > 1:
        return ["linear_attention" if (number + 1) % every else "full_attention" for number in range(count)]
    slides = text.get("sliding_window") and text.get("use_sliding_window", True)
    return ["sliding_attention" if slides else "full_attention"] * count


def first_number(values: Config, *names: str) -> int:
    """Return the first integer among the settings with these names, or 0 if there is none."""
    candidates = (values.get(name) for name in names)
    return next((value for value in candidates if isinstance(value, int) and not isinstance(value, bool)), 0)
