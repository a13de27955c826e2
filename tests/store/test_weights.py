"""Parameters are counted from headers, without tied weights and stored constants; broken files give one sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from safetensors.numpy import save_file

from codespec.errors import ModelError
from codespec.store.model_folder import read_weights


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
    with pytest.raises(ModelError, match=r"truncated or corrupt: fetch or export the model again\.$"):
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
