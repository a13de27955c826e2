"""The claims of config.json are checked against the headers of the weights, and the headers against the files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from codespec.errors import ModelError
from codespec.store.model_folder import check_claims, describe_layers, read_header
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
    with pytest.raises(ModelError, match=r"states \w+ = [\de+.]+, but its weights have .*: fetch or export") as caught:
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
    with pytest.raises(ModelError, match="not a file in it"):
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
