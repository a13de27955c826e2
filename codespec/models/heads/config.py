"""What a head is: its sizes, which layers of its target it reads, and for which target it was trained. Knows the names
that public config.json files use; knows no weights.

EAGLE-3 (Li et al. 2025, arXiv 2503.01840) and DFlash (Chen et al. 2026, arXiv 2602.06036) are read and written with the
names of their own repositories; what those lack is under "codespec".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from codespec.errors import ModelError, TokenizerError
from codespec.text.control_tokens import read_json

Kind = Literal["eagle3", "dflash"]
WEIGHTS = "model.safetensors"  # the file of them
ARCHITECTURES: dict[str, Kind] = {
    "LlamaForCausalLMEagle3": "eagle3",
    "Eagle3LlamaForCausalLM": "eagle3",
    "DFlashDraftModel": "dflash",
}
MOST_LAYERS = 64  # of a head, and of its target's that it reads
MOST_BLOCK = 256
FEW_LAYERS = 8  # of a target


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes of a head. `layers` are those of the target whose outputs it reads; `vocab_size` is the target's and
    `draft_vocab` how many of its tokens the head can guess; `block` is a DFlash head's anchor and what it fills in one
    forward; `rope` are transformers' rope_parameters; `target` is the fingerprint of the target, empty where the files
    do not say.
    """

    kind: Kind
    hidden_size: int
    target_size: int
    layers: tuple[int, ...]
    heads: int
    kv_heads: int
    head_size: int
    mlp_size: int
    vocab_size: int
    draft_vocab: int
    draft_layers: int = 1
    block: int = 8
    epsilon: float = 1e-5
    max_positions: int = 2048
    mask_token: int | None = None
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    target: Mapping[str, Any] = field(default_factory=dict)

    @property
    def made_for(self) -> str:
        """The target that it was trained for, in words."""
        size = f"{self.vocab_size} tokens, width {self.target_size}"
        return f"{self.target['name']}: {size}" if self.target.get("name") else size

    def to_json(self) -> dict[str, Any]:
        """A config.json in the layout of the kind's own repository."""
        values: dict[str, Any] = {
            "model_type": "llama" if self.kind == "eagle3" else "qwen3",
            "hidden_size": self.hidden_size,
            "target_hidden_size": self.target_size,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "intermediate_size": self.mlp_size,
            "num_hidden_layers": self.draft_layers,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab,
            "rms_norm_eps": self.epsilon,
            "max_position_embeddings": self.max_positions,
            "rope_parameters": dict(self.rope),
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        }
        if self.kind == "eagle3":
            reads = {"eagle_aux_hidden_state_layer_ids": list(self.layers), "use_aux_hidden_state": True}
            values |= {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": reads}
        else:
            reads = {"target_layer_ids": list(self.layers), "mask_token_id": self.mask_token}
            values |= {"architectures": ["DFlashDraftModel"], "block_size": self.block, "dflash_config": reads}
        return values | {"codespec": {"target": dict(self.target)}}


def read_head_config(folder: Path, target_layers: int) -> HeadConfig:
    """The config.json of a head's folder. Raises ModelError if there is none or it is no head's."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"There is no head in {folder}: give a folder with config.json and {WEIGHTS}.")
    try:
        values = read_json(folder / "config.json")
    except TokenizerError as error:
        raise ModelError(
            f"The config.json of the head {folder} can't be read as a JSON object: fetch or export the head again."
        ) from error
    return parse_config(values, folder, target_layers=target_layers)


def parse_config(values: Mapping[str, Any], folder: Path, *, target_layers: int) -> HeadConfig:
    """A head's config.json; `target_layers`, how many layers the target has, decides what it reads where it does not
    say. Raises ModelError in one sentence for anything that is no head or has impossible sizes.
    """
    kind = _kind(values, folder)
    _demand_known(values, folder)
    get = _Reader(values, folder)
    hidden, heads = get.size("hidden_size"), get.size("num_attention_heads", most=1 << 12)
    layers = get.layers(kind, target_layers)
    kv_heads, head_size = get.size("num_key_value_heads", heads, most=1 << 12), get.size("head_dim", hidden // heads)
    if heads % kv_heads or head_size % 2:
        raise ModelError(
            f"The head {folder} has {heads} attention heads of {head_size} over {kv_heads} of keys, which no attention "
            "computes: fetch or export the head again."
        )
    drafted = 1 if kind == "eagle3" else get.size("num_hidden_layers", most=MOST_LAYERS)
    return HeadConfig(
        kind=kind,
        hidden_size=hidden,
        target_size=get.size("target_hidden_size", hidden),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        mlp_size=get.size("intermediate_size"),
        vocab_size=get.size("vocab_size"),
        draft_vocab=get.size("draft_vocab_size", get.size("vocab_size")),
        draft_layers=drafted,
        block=get.size("block_size", 16, most=MOST_BLOCK) if kind == "dflash" else 8,
        epsilon=get.number("rms_norm_eps", 1e-6),
        max_positions=get.size("max_position_embeddings", 2048, most=1 << 26),
        mask_token=get.mask_token() if kind == "dflash" else None,
        rope=get.rope(),
        target=get.part("codespec").get("target") or {},
    )


def _kind(values: Mapping[str, Any], folder: Path) -> Kind:
    named = values.get("architectures")
    for name in named if isinstance(named, list) else ():
        if isinstance(name, str) and name in ARCHITECTURES:
            return ARCHITECTURES[name]
        if name == "LlamaForCausalLM" and "draft_vocab_size" in values:  # as the first EAGLE-3 heads are named
            return "eagle3"
    raise ModelError(
        f"{folder} is no head that codespec knows (architectures: {named}): give the folder of an EAGLE-3 or DFlash "
        "head."
    )


def _demand_known(values: Mapping[str, Any], folder: Path) -> None:
    """ModelError for a layer that would be computed wrongly."""
    unknown = {
        "windows": "sliding_attention" in (values.get("layer_types") or ()),
        "biases": bool(values.get("attention_bias") or values.get("mlp_bias")),
        "another activation": values.get("hidden_act", "silu") not in ("silu", "swish"),
    }
    for what, found in unknown.items():
        if found:
            raise ModelError(
                f"The layers of the head {folder} have {what}, which codespec does not compute in a head: "
                "choose another head."
            )


class _Reader:
    """Reads the values of one config.json and says which is wrong."""

    def __init__(self, values: Mapping[str, Any], folder: Path) -> None:
        self._values, self._folder = values, folder

    def part(self, name: str) -> Mapping[str, Any]:
        """A part of the file, empty if it is missing."""
        found = self._values.get(name)
        return found if isinstance(found, dict) else {}

    def size(self, name: str, default: int | None = None, *, most: int = 1 << 20) -> int:
        """A whole number from 1 to `most`."""
        value = self._values.get(name)
        value = default if value is None else value
        if type(value) is not int or not 1 <= value <= most:
            raise self._wrong(name, value)
        return value

    def number(self, name: str, default: float) -> float:
        """A number above 0."""
        value = self._values.get(name, default)
        if not isinstance(value, int | float) or not 0 < value < 1:
            raise self._wrong(name, value)
        return float(value)

    def layers(self, kind: Kind, target_layers: int) -> tuple[int, ...]:
        """The target's layers that it reads; EAGLE-3's own are a low, a middle and a high one."""
        if kind == "eagle3":
            found = self.part("eagle_config").get("eagle_aux_hidden_state_layer_ids")
            found = usual_layers(target_layers) if found is None else found
        else:
            found = self.part("dflash_config").get("target_layer_ids")
            found = spread_layers(target_layers, self.size("num_hidden_layers")) if found is None else found
        usable = isinstance(found, list | tuple) and 0 < len(found) <= MOST_LAYERS
        if not usable or not all(type(one) is int and one >= 0 for one in found):
            raise self._wrong("its target's layers", found)
        return tuple(found)

    def mask_token(self) -> int | None:
        """The target's token that stands for what is to be filled in; None where the weights have a vector for it."""
        found = self.part("dflash_config").get("mask_token_id", self._values.get("mask_token_id"))
        if found is not None and (type(found) is not int or found < 0):
            raise self._wrong("mask_token_id", found)
        return found

    def rope(self) -> Mapping[str, Any]:
        """transformers' rope_parameters, from either of its spellings."""
        found = self.part("rope_parameters")
        if found:
            return found
        theta = self._values.get("rope_theta", 10000.0)
        if not isinstance(theta, int | float) or theta <= 0:
            raise self._wrong("rope_theta", theta)
        scaling = dict(self.part("rope_scaling"))
        scaling["rope_type"] = scaling.pop("type", scaling.get("rope_type", "default"))
        return {"rope_theta": float(theta), **scaling}

    def _wrong(self, name: str, value: object) -> ModelError:
        return ModelError(f"The config.json of {self._folder} has {name} = {value!r}: fetch or export the head again.")


def usual_layers(count: int) -> tuple[int, ...]:
    """What EAGLE-3 reads of a target with `count` layers: behind the second, the middle, the fourth from the end; of
    one with few layers the first, the middle and the last.
    """
    return (1, count // 2 - 1, count - 4) if count >= FEW_LAYERS else (0, count // 2, count - 1)


def spread_layers(count: int, wanted: int) -> tuple[int, ...]:
    """What DFlash reads: `wanted` layers evenly from the second to the third from the end; one: the middle."""
    if wanted == 1:
        return (count // 2,)
    first, last = 1, max(1, count - 3)
    return tuple(round(first + index * (last - first) / (wanted - 1)) for index in range(wanted))
