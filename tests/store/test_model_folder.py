"""A model folder's configuration and headers are compared with its files, and its parameters are counted."""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from safetensors.numpy import save_file

from codespec.backends.gguf import header
from codespec.errors import ModelError, TokenizerError
from codespec.files import read_json
from codespec.store.model_folder import (
    check_claims,
    context_length,
    describe_layers,
    read_header,
    read_layout,
    read_weights,
    why_unsuitable,
)
from tests.pair.folders import write_model


@pytest.mark.parametrize(
    "claims",
    [
        {"num_hidden_layers": 10**9},
        {"n_layer": 4},
        {"text_config": {"num_hidden_layers": 20_000}},
        {"vision": [{"num_layers": 5}]},
        {"hidden_size": 2**31},
        {"num_labels": 10**9},
        {"num_experts": 9},
        {"d_model": 1e9},
        {"head_dim": 10**30},
        {"vocab_size": 2**31},
    ],
)
def test_more_than_the_files_hold_is_refused(claims: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"states \w+ = [\de+.]+, but its weights have .*: download or") as caught:
        check_claims(write_model(tmp_path, "bytes", **claims))
    assert str(caught.value).count(". ") == 0


def test_what_nothing_is_made_of_may_be_large(tmp_path: Path) -> None:
    harmless = {
        "num_hidden_layers": 3, "max_position_embeddings": 2**40, "rope_theta": 10**9, "sliding_window_size": 10**6,
        "eos_token_id": 10**6, "num_training_tokens": 10**13, "n_positions": 10**6, "num_params": 10**11,
        "time_step_limit": [0.0, float("inf")], "tie_word_embeddings": True, "hidden_size": 8, "max_window_layers": 70,
    }  # fmt: skip
    assert len(check_claims(write_model(tmp_path, "bytes", **harmless))) == 3


def write(file: Path, header: Any, data: int = 0, length: int | None = None) -> Path:
    spelled = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(spelled) if length is None else length
    file.write_bytes(size.to_bytes(8, "little") + spelled + bytes(data))
    return file


def tensor(start: int, end: int, *shape: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"a": tensor(0, 16, 2**30, 2**30)}, 16),
        ({"a": tensor(0, 16, 2**60, 2**60)}, 16),
        ({"a": tensor(0, 16, -2, -2)}, 16),
        ({"a": tensor(0, 16, 4.0)}, 16),
        ({"a": tensor(0, 16, True, 4)}, 16),
        ({"a": tensor(0, 16, 4, dtype="X7")}, 16),
        ({"a": tensor(0, 16, 4), "b": tensor(0, 16, 4)}, 16),
        ({"a": tensor(0, 16, 4), "b": tensor(8, 24, 4)}, 24),
        ({"a": tensor(4, 20, 4)}, 20),
        ({"a": tensor(0, 16, 4)}, 20),
        ({"a": tensor(16, 0, 4)}, 16),
        ({"a": {**tensor(0, 16, 4), "data_offsets": [0, 8, 16]}}, 16),
        (b'{"a":' + b"[" * 100_000, 16),
    ],
)
def test_a_header_that_the_file_does_not_bear_out_is_refused(header: Any, data: int, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="corrupt"):
        read_header(write(tmp_path / "model.safetensors", header, data))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**8, 99])
def test_a_header_longer_than_the_file_is_refused(length: int, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="truncated or corrupt"):
        read_header(write(tmp_path / "model.safetensors", {}, length=length))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="not a regular file"):
        read_header(tmp_path / "model.safetensors")


def test_the_index_names_files_of_its_folder(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "bytes")
    index = {"weight_map": {"a": "../other/model.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="not a file in that folder"):
        check_claims(tmp_path / "model")


QWEN35 = {"model_type": "qwen3_5_text", "num_hidden_layers": 8, "full_attention_interval": 4}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "num_local_experts": 32, "num_experts_per_tok": 4}


@pytest.mark.parametrize(
    ("config", "layers", "cost"),
    [
        ({"num_hidden_layers": 28}, "28 attention", "a length"),
        ({"num_hidden_layers": 28, "sliding_window": 4096}, "28 sliding", "a length"),
        ({"num_hidden_layers": 2, "sliding_window": 4, "use_sliding_window": False}, "2 attention", "a length"),
        (MIXED, "1 attention, 1 sliding, 32 experts (4 for each token)", "a length"),
        ({"layer_types": ["conv", "conv", "attention"]}, "1 attention, 2 recurrent", "a length and replayed rows"),
        (QWEN35, "2 attention, 6 recurrent", "a length and replayed rows"),
        ({"text_config": QWEN35}, "2 attention, 6 recurrent", "a length and replayed rows"),
        ({"n_layer": 4, "num_local_experts": 0, "num_experts_per_tok": 0}, "4 attention", "a length"),
        ({}, "", "a length"),
    ],
)
def test_layers(config: dict[str, Any], layers: str, cost: str) -> None:
    assert describe_layers(config) == f"layers: {layers}, a rollback costs {cost}"


def save(folder: Path, shapes: dict[str, tuple[int, ...]], name: str = "model.safetensors", dtype: str = "f4") -> Path:
    save_file({key: np.zeros(shape, dtype) for key, shape in shapes.items()}, folder / name)
    return folder / name


@settings(max_examples=20)
@given(shapes=st.lists(array_shapes(max_dims=3, max_side=5), min_size=1, max_size=6))
def test_the_count_is_the_sum_of_all_sizes(
    shapes: list[tuple[int, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("model")
    save(folder, {f"layer.{n}.weight": shape for n, shape in enumerate(shapes)})
    assert read_weights(folder, tied=False).parameters == sum(math.prod(shape) for shape in shapes)


def test_a_tied_output_layer_counts_once(tmp_path: Path) -> None:
    save(tmp_path, {"model.embed_tokens.weight": (10, 4), "lm_head.weight": (10, 4), "norm.weight": (4,)})
    assert read_weights(tmp_path, tied=True).parameters == 44
    assert read_weights(tmp_path, tied=False).parameters == 84


def test_an_output_layer_without_an_embedding_is_no_copy(tmp_path: Path) -> None:
    save(tmp_path, {"lm_head.weight": (10, 4)})
    assert read_weights(tmp_path, tied=True).parameters == 40


def test_stored_constants_are_no_parameters(tmp_path: Path) -> None:
    constants = {"h.0.attn.bias": (1, 1, 8, 8), "h.0.attn.masked_bias": (1,), "layers.0.rotary_emb.inv_freq": (4,)}
    save(tmp_path, {"h.0.attn.c_attn.weight": (4, 12), "h.0.attn.c_attn.bias": (12,), "x.attn.bias": (5,), **constants})
    assert read_weights(tmp_path, tied=False).parameters == 48 + 12 + 5 + 0 * 4


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    save(tmp_path, {"a": (3, 3)}, "model-00001-of-00002.safetensors", "f2")
    save(tmp_path, {"b": (2, 2)}, "model-00002-of-00002.safetensors")
    save(tmp_path, {"a": (3, 3), "b": (2, 2)}, "consolidated.safetensors")  # a second copy, as Mistral ships it
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = read_weights(tmp_path, tied=False)
    assert (weights.parameters, weights.dtype) == (13, "F16")


@pytest.mark.parametrize("size", [0, 4, 20, -1])
def test_a_truncated_file_is_one_sentence(size: int, tmp_path: Path) -> None:
    file = save(tmp_path, {"a": (3, 3)})
    data = file.read_bytes()
    file.write_bytes(data[:size])
    with pytest.raises(ModelError, match=r"truncated or corrupt: download or export the model again\.$"):
        read_weights(tmp_path, tied=False)


@pytest.mark.parametrize("header", [b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [1]}}', b"\xff\xff"])
def test_a_strange_header_is_one_sentence(header: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelError, match="truncated or corrupt"):
        read_weights(tmp_path, tied=False)


def test_missing_weights_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match=r"has no \*\.safetensors weights: convert"):
        read_weights(tmp_path, tied=False)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(ModelError, match=r"gone\.safetensors can't be read"):
        read_weights(tmp_path, tied=False)


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
    with pytest.raises(TokenizerError, match="or save it as UTF-8 without a byte-order mark"):
        read_json(tmp_path / "config.json")


def test_a_tensor_of_very_many_dimensions_is_refused_at_once(tmp_path: Path) -> None:
    entry = {"a": {"dtype": "F32", "shape": [(1 << 60) - 1] * 40_000, "data_offsets": [0, 0]}}
    text = json.dumps(entry).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    began = time.process_time()
    json.loads(text)
    parsed, began = time.process_time() - began, time.process_time()
    with pytest.raises(ModelError, match="truncated or corrupt"):
        read_layout(file)
    assert time.process_time() - began < 20 * parsed + 0.1


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def gguf(*settings: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(settings)) + b"".join(settings)


def zeros(key: str, count: int) -> bytes:
    return text(key.encode()) + struct.pack("<IIQ", 9, 0, count) + bytes(count)


def test_lists_are_limited_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file holds any number of them, and a number in Python is many times as large."""
    monkeypatch.setattr(header, "MAX_ELEMENTS", 100)
    file = tmp_path / "a.gguf"
    file.write_bytes(gguf(zeros("a", 50), zeros("b", 50)))
    assert header.read_header(file).get("b", list, []) == [0] * 50
    file.write_bytes(gguf(zeros("a", 50), zeros("b", 50), zeros("c", 1)))
    with pytest.raises(ModelError, match="ends within its header"):
        header.read_header(file)


def test_a_long_name_is_not_repeated_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(gguf(*[zeros("k" * 100_000, 1)] * 2))
    with pytest.raises(ModelError, match="occurs twice") as raised:
        header.read_header(file)
    assert len(str(raised.value)) < 400 + len(str(file))
