"""Features of Llama-like models (biases, heads, rotary embeddings, windows) survive the conversion to int8.

Each int8 model must be much closer to its float model than that model is to the same model without the feature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from codespec.models.int8.convert import convert
from codespec.models.int8.network import Int8Network
from codespec.models.loader import load_model
from codespec.models.torch_model import TorchModel
from codespec.startup.batch_invariance import find_variance
from tests.models.int8.test_models import change_config, logits, save_float
from tests.pairs import build
from tests.tiny_models import WINDOW

WEIGHTS = "model.safetensors"
NEAR, TIMES = 0.05, 5  # nats; minimum ratio for the model without the trait
Weights = dict[str, Tensor]


def edit_weights(folder: Path, change: Callable[[Weights], Weights]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})


def without_biases(*projections: str) -> Callable[[Weights], Weights]:
    names = tuple(f"{name}.bias" for name in projections)
    return lambda weights: {
        name: torch.zeros_like(value) if name.endswith(names) else value for name, value in weights.items()
    }


def same(weights: Weights) -> Weights:
    return weights


@dataclass(frozen=True)
class Trait:
    """An architecture with settings that give it a trait, and the settings or weights that remove it."""

    architecture: str
    settings: dict[str, Any] = field(default_factory=dict)
    other_settings: dict[str, Any] = field(default_factory=dict)
    other_weights: Callable[[Weights], Weights] = same


def rotary(**values: Any) -> Trait:
    usual = {"rope_type": "default", "rope_theta": 10000.0}
    parameters = {"rope_parameters": {**usual, **values}}
    return Trait("llama", parameters, {"rope_parameters": usual})


BIASED = {"attention_bias": True, "mlp_bias": True}
FULL, SLIDING = "full_attention", "sliding_attention"
WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW}
TRAITS = {
    "q, k and v biases": Trait("llama", BIASED, other_weights=without_biases("q_proj", "k_proj", "v_proj")),
    "o bias": Trait("llama", BIASED, other_weights=without_biases("o_proj")),
    "down bias": Trait("llama", BIASED, other_weights=without_biases("down_proj")),
    "yarn": rotary(rope_type="yarn", factor=16.0, original_max_position_embeddings=64),
    "a window of the first layer": Trait(
        "qwen2", {**WINDOWED, "layer_types": [SLIDING, FULL]}, {"layer_types": [FULL, SLIDING]}
    ),
}


def folder_of(trait: Trait) -> Path:
    return save_float(trait.architecture, **trait.settings)


def rounded(source: Path, folder: Path) -> TorchModel:
    """Return the int8 model converted from a float folder into this one."""
    folder.mkdir()
    convert(source, folder, "0" * 64)
    model = load_model(str(folder), dtype="int8")
    assert isinstance(model.network, Int8Network)
    return model


def divergence(wanted: TorchModel, got: TorchModel) -> float:
    """Return KL(wanted ‖ got) in nats, the mean of 200 positions."""
    ids = [(31 * place + 7) % 900 for place in range(200)]
    ours, theirs = (torch.log_softmax(logits(model, ids), -1) for model in (wanted, got))
    return float((ours.exp() * (ours - theirs)).sum(-1).mean())


@pytest.mark.parametrize("name", TRAITS)
def test_a_trait_survives(name: str, tmp_path: Path) -> None:
    trait = TRAITS[name]
    source = folder_of(trait)
    other = Path(copytree(source, tmp_path / "other"))
    change_config(other, **trait.other_settings)
    edit_weights(other, trait.other_weights)
    plain, model = load_model(str(source)), rounded(source, tmp_path / "int8")
    far, near = divergence(plain, load_model(str(other))), divergence(plain, model)
    assert near < NEAR and near * TIMES < far, (near, far)


@pytest.mark.parametrize("name", ["a window of the first layer"])
def test_rows_do_not_depend_on_each_other(name: str, tmp_path: Path) -> None:
    model = rounded(folder_of(TRAITS[name]), tmp_path / "int8")
    build(model)
    model.allocate(3, 640)
    assert not find_variance(model, 64)


def with_head(change: Callable[[Tensor], Tensor]) -> Callable[[Weights], Weights]:
    return lambda weights: {**weights, "lm_head.weight": change(weights["model.embed_tokens.weight"])}


HEADS: dict[str, tuple[bool, Callable[[Weights], Weights]]] = {
    "tied, stored once": (True, same),
    "tied in config.json, and another one is stored": (True, with_head(lambda embedding: embedding.flip(0))),
    "not tied": (False, same),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads(name: str, tmp_path: Path) -> None:
    tied, change = HEADS[name]
    source = save_float("llama", tie_word_embeddings=tied)
    edit_weights(source, change)
    plain, model = load_model(str(source)), rounded(source, tmp_path / "int8")
    assert divergence(plain, model) < NEAR
