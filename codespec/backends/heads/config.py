"""Read a head's config.json, in the format of the EAGLE-3 or the DFlash repository (arXiv 2503.01840, 2602.06036)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from codespec.errors import ModelError, TokenizerError
from codespec.files import read_json

HeadKind = Literal["eagle3", "dflash"]
ARCHITECTURES: dict[str, HeadKind] = {
    "LlamaForCausalLMEagle3": "eagle3",
    "Eagle3LlamaForCausalLM": "eagle3",
    "DFlashDraftModel": "dflash",
}
AGAIN = "download or export the head again"
MAX_LAYERS = 64  # limit for a head's own layers, and for the target layers that it reads
MAX_BLOCK = 256
FEW_LAYERS = 8  # the default layers differ for targets with fewer layers than this


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The configuration of a draft head."""

    kind: HeadKind
    hidden_size: int
    target_size: int
    layers: tuple[int, ...]  # target layers whose outputs the head reads
    heads: int
    kv_heads: int
    head_size: int
    mlp_size: int
    vocab_size: int  # of the target
    draft_vocab: int  # number of target tokens that the head can predict
    draft_layers: int = 1
    block: int = 8  # size of a DFlash block: the anchor, and the positions that one forward pass fills
    epsilon: float = 1e-5
    max_positions: int = 2048
    mask_token: int | None = None
    # In the format of transformers' `rope_parameters`.
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})


def read_head_config(folder: Path, target_layers: int) -> HeadConfig:
    """Read a head's config.json for a target with `target_layers` layers. Raise ModelError for an unusable file."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"There is no head in {folder}", "set `head` to a folder with config.json and *.safetensors")
    try:
        values = read_json(folder / "config.json")
    except TokenizerError as error:
        raise ModelError(f"The config.json of the head {folder} can't be read as a JSON object", AGAIN) from error
    kind = _kind(values, folder)
    _demand_known(values, folder)
    get = _Values(values, folder)
    hidden, heads = get.size("hidden_size"), get.size("num_attention_heads", most=1 << 12)
    kv_heads, head_size = get.size("num_key_value_heads", heads, most=1 << 12), get.size("head_dim", hidden // heads)
    if heads % kv_heads or head_size % 2:
        sizes = f"{heads} attention heads of size {head_size} and {kv_heads} key heads"
        raise ModelError(f"The head {folder} has unsupported dimensions ({sizes})", AGAIN)
    return HeadConfig(
        kind=kind,
        hidden_size=hidden,
        target_size=get.size("target_hidden_size", hidden),
        layers=get.layers(kind, target_layers),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        mlp_size=get.size("intermediate_size"),
        vocab_size=get.size("vocab_size"),
        draft_vocab=get.size("draft_vocab_size", get.size("vocab_size")),
        draft_layers=1 if kind == "eagle3" else get.size("num_hidden_layers", most=MAX_LAYERS),
        block=get.size("block_size", 16, most=MAX_BLOCK) if kind == "dflash" else 8,
        epsilon=get.epsilon(),
        max_positions=get.size("max_position_embeddings", 2048, most=1 << 26),
        mask_token=get.mask_token() if kind == "dflash" else None,
        rope=get.rope(),
    )


def _kind(values: Mapping[str, Any], folder: Path) -> HeadKind:
    named = values.get("architectures")
    for name in named if isinstance(named, list) else ():
        if isinstance(name, str) and name in ARCHITECTURES:
            return ARCHITECTURES[name]
        if name == "LlamaForCausalLM" and "draft_vocab_size" in values:  # the name in the first EAGLE-3 heads
            return "eagle3"
    what = f"{folder} is not a head that codespec supports (architectures: {named})"
    raise ModelError(what, "set `head` to the folder of an EAGLE-3 or DFlash head")


def _demand_known(values: Mapping[str, Any], folder: Path) -> None:
    """Raise ModelError if the head's layers use features that codespec does not support in a head."""
    unknown = {
        "windows": "sliding_attention" in (values.get("layer_types") or ()),
        "biases": bool(values.get("attention_bias") or values.get("mlp_bias")),
        "another activation": values.get("hidden_act", "silu") not in ("silu", "swish"),
    }
    for feature, is_used in unknown.items():
        if is_used:
            what = f"The layers of the head {folder} have {feature}, which codespec does not support in a head"
            raise ModelError(what, "choose another head")


class _Values:
    """Reads the values of a config.json. Each method raises a ModelError if its value is invalid."""

    def __init__(self, values: Mapping[str, Any], folder: Path) -> None:
        self._values, self._folder = values, folder

    def _part(self, name: str) -> Mapping[str, Any]:
        """Return the nested object `name`, or an empty mapping if it is missing or not an object."""
        values = self._values.get(name)
        return values if isinstance(values, dict) else {}

    def size(self, name: str, default: int | None = None, *, most: int = 1 << 20) -> int:
        """Return the value of `name`, which must be an integer from 1 to `most`."""
        value = self._values.get(name)
        value = default if value is None else value
        if type(value) is not int or not 1 <= value <= most:
            raise self._wrong(name, value)
        return value

    def epsilon(self) -> float:
        value = self._values.get("rms_norm_eps", 1e-6)
        if not isinstance(value, int | float) or not 0 < value < 1:
            raise self._wrong("rms_norm_eps", value)
        return float(value)

    def layers(self, kind: HeadKind, target_layers: int) -> tuple[int, ...]:
        """Return the target layers that the head reads, or the defaults if the file does not list them."""
        if kind == "eagle3":
            layers = self._part("eagle_config").get("eagle_aux_hidden_state_layer_ids")
            layers = usual_layers(target_layers) if layers is None else layers
        else:
            layers = self._part("dflash_config").get("target_layer_ids")
            layers = spread_layers(target_layers, self.size("num_hidden_layers")) if layers is None else layers
        is_usable = isinstance(layers, list | tuple) and 0 < len(layers) <= MAX_LAYERS
        if not is_usable or not all(type(layer) is int and layer >= 0 for layer in layers):
            raise self._wrong("target layers", layers)
        return tuple(layers)

    def mask_token(self) -> int | None:
        """Return the id of the mask token, or None if the file names no mask token."""
        token = self._part("dflash_config").get("mask_token_id", self._values.get("mask_token_id"))
        if token is not None and (type(token) is not int or token < 0):
            raise self._wrong("mask_token_id", token)
        return token

    def rope(self) -> Mapping[str, Any]:
        """Return `rope_parameters` in transformers' current format, converted from older keys if necessary."""
        if parameters := self._part("rope_parameters"):
            return parameters
        theta = self._values.get("rope_theta", 10000.0)
        if not isinstance(theta, int | float) or theta <= 0:
            raise self._wrong("rope_theta", theta)
        scaling = dict(self._part("rope_scaling"))
        scaling["rope_type"] = scaling.pop("type", scaling.get("rope_type", "default"))
        return {"rope_theta": float(theta), **scaling}

    def _wrong(self, name: str, value: object) -> ModelError:
        return ModelError(f"The config.json of the head {self._folder} has the invalid value {name} = {value!r}", AGAIN)


def usual_layers(count: int) -> tuple[int, ...]:
    """Return the layers of a target with `count` layers that an EAGLE-3 head reads by default."""
    return (1, count // 2 - 1, count - 4) if count >= FEW_LAYERS else (0, count // 2, count - 1)


def spread_layers(count: int, wanted: int) -> tuple[int, ...]:
    """Return the `wanted` evenly spaced layers of a target with `count` layers that a DFlash head reads by default."""
    if wanted == 1:
        return (count // 2,)
    first, last = 1, max(1, count - 3)
    return tuple(round(first + index * (last - first) / (wanted - 1)) for index in range(wanted))
