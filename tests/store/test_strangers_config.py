"""A config.json with any value under any key that is read, and JSON files that an editor saved in its own way."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from codespec.errors import TokenizerError
from codespec.files import read_json
from codespec.store.model_folder import context_length, describe_layers, why_unsuitable

KEYS = (
    *("architectures", "model_type", "text_config", "layer_types", "layers_block_type", "block_types"),
    *("full_attention_interval", "attn_layer_period", "attn_layer_offset", "attn_layer_indices", "num_hidden_layers"),
    *("num_experts", "num_experts_per_tok", "sliding_window", "use_sliding_window", "rope_scaling", "rope_parameters"),
    *("partial_rotary_factor", "hidden_act", "max_position_embeddings", "is_encoder_decoder"),
)
ODD: list[Any] = ["1", -1, True, None, [], {}, [1], [[1]], [{}], ["a", 1, None], 1e308, 0, 10**4, 0.5, float("nan")]
SOUND = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_act": "silu"}


@pytest.mark.parametrize("key", KEYS)
def test_any_value_under_any_key(key: str) -> None:
    for value, more in itertools.product(ODD, ({}, {"attn_layer_period": 2}, {"model_type": "mamba"})):
        config = {**SOUND, **more, key: value}
        assert describe_layers(config)
        context_length(config)
        why_unsuitable(config)


@pytest.mark.parametrize("saved", [b"\xef\xbb\xbf", "utf-16", "latin-1"])
def test_json_that_an_editor_saved_says_so(saved: str | bytes, tmp_path: Path) -> None:
    text = json.dumps({"model_type": "caf\u00e9"}, ensure_ascii=False)
    data = saved + text.encode() if isinstance(saved, bytes) else text.encode(saved)
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(TokenizerError, match="or save the file as UTF-8 without a byte-order mark"):
        read_json(tmp_path / "config.json")
