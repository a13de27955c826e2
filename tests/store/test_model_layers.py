"""What a configuration says about its layers' state, its experts, and the cost of a rollback."""

from __future__ import annotations

from typing import Any

import pytest

from codespec.store.model_config import read_layers

QWEN35 = {"model_type": "qwen3_5_text", "num_hidden_layers": 8, "full_attention_interval": 4}
LISTED = {"layer_types": ["mamba", "mamba", "attention"], "num_hidden_layers": 3}


@pytest.mark.parametrize(
    ("config", "layers", "mixture", "rollback"),
    [
        ({"num_hidden_layers": 28}, "28 attention", "none", "a length"),
        ({"num_hidden_layers": 28, "sliding_window": 4096}, "28 sliding", "none", "a length"),
        (
            {"num_hidden_layers": 28, "sliding_window": 4096, "use_sliding_window": False},
            "28 attention",
            "none",
            "a length",
        ),
        (
            {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "num_local_experts": 32}
            | {"num_experts_per_tok": 4},
            "1 attention, 1 sliding",
            "32, 4 of them for each token",
            "a length",
        ),
        (LISTED, "1 attention, 2 recurrent", "none", "a length and replayed rows"),
        (QWEN35, "2 attention, 6 recurrent", "none", "a length and replayed rows"),
        ({"text_config": QWEN35}, "2 attention, 6 recurrent", "none", "a length and replayed rows"),
        (
            {"num_hidden_layers": 8, "attn_layer_period": 8, "attn_layer_offset": 4, "num_experts": 16}
            | {"num_experts_per_tok": 2},
            "1 attention, 7 recurrent",
            "16, 2 of them for each token",
            "a length and replayed rows",
        ),
        (
            {"num_hidden_layers": 4, "attn_layer_indices": [1]},
            "1 attention, 3 recurrent",
            "none",
            "a length and replayed rows",
        ),
        ({"model_type": "mamba2", "num_hidden_layers": 4}, "4 recurrent", "none", "replayed rows"),
        (
            {"model_type": "falcon_h1", "num_hidden_layers": 4},
            "4 attention, 4 recurrent",
            "none",
            "a length and replayed rows",
        ),
        ({"num_hidden_layers": 4, "num_local_experts": 0, "num_experts_per_tok": 0}, "4 attention", "none", "a length"),
        ({}, "", "none", "a length"),
    ],
)
def test_layers(config: dict[str, Any], layers: str, mixture: str, rollback: str) -> None:
    read = read_layers(config)
    experts = f"{read.experts}, {read.chosen} of them for each token" if read.experts else "none"
    assert (str(read), experts, read.rollback) == (layers, mixture, rollback)
