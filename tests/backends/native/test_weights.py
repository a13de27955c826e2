"""A GGUF file in the native kernels computes what the model it was made from computes, or is refused by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from codespec_native.library import Floats, Model, Pool, find_path, paths

from codespec.backends.gguf.header import read_header
from codespec.backends.native.weights import Reader, load_weights, map_file_tensors, map_folder_tensors, read_file_shape
from codespec.errors import ModelError
from tests.backends.gguf.files import network, write_model

READ = ["llama", "untied", "linear", "llama3", "qwen2", "qwen3", "phi3", "phi3_partial", "granite"]
IDS = [5 + 37 * place % 600 for place in range(40)]


def load(file: Path, threads: int = 2, path: str = "", slots: int = 2) -> Model:
    pool = Pool(threads)
    header = read_header(file)
    weights = load_weights(read_file_shape(header), Reader(file, map_file_tensors(header), pool))
    return Model(weights, slots, 64, pool, find_path(path))


def logits(model: Model, counts: list[int], slot: int = 0) -> Floats:
    """Return the logits of all of IDS, computed in steps of so many rows."""
    found, start = [], 0
    for count in counts:
        rows = range(start, start + count)
        found.append(model.step(IDS[start : start + count], [slot] * count, rows, range(count)))
        start += count
    return np.concatenate(found)


@pytest.mark.parametrize("case", READ)
def test_logits_are_those_of_the_model(case: str, tmp_path: Path) -> None:
    """Weights and activations have eight bits, which moves a logit by a few percent of their spread."""
    with torch.no_grad():
        true = network(case)(torch.tensor([IDS])).logits[0].numpy()
    found = logits(load(write_model(tmp_path / "m.gguf", case)), [len(IDS)])
    assert found.shape == true.shape
    error, spread = np.abs(found - true), true.std()
    assert error.mean() < 0.05 * spread and error.max() < 0.4 * spread
    assert (found.argmax(axis=1) == true.argmax(axis=1)).mean() > 0.8


@pytest.mark.parametrize("form", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_a_row_has_the_same_bits_in_any_step_on_any_path(form: str, tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", "phi3", form)
    model = load(file)
    whole = logits(model, [len(IDS)])
    assert np.array_equal(logits(model, [1] * len(IDS), slot=1), whole)
    assert np.array_equal(logits(model, [7, 9, 1, 20, 3]), whole)
    for path in paths():
        assert np.array_equal(logits(load(file, threads=1, path=path), [len(IDS)]), whole), path


def test_sequences_of_one_step_and_copied_slots_do_not_mix(tmp_path: Path) -> None:
    model = load(write_model(tmp_path / "m.gguf", "qwen3", "Q8_0"))
    whole = logits(model, [len(IDS)])
    model.copy(0, 1, 20)
    tokens, slots = [*IDS[30:], *IDS[20:23]], [0] * 10 + [1] * 3
    both = model.step(tokens, slots, [*range(30, 40), *range(20, 23)], range(13))
    assert np.array_equal(both[:10], whole[30:])
    assert np.array_equal(both[10:], whole[20:23])


@pytest.mark.parametrize(
    ("case", "feature"),
    [
        ("gemma", "the architecture 'gemma'"),
        ("yarn", "the rotary scaling 'yarn'"),
        ("phi3_longrope", "the rotary scaling"),
        ("biased", "the tensor blk.0.ffn_down.bias"),
    ],
)
def test_what_the_kernels_do_not_compute_is_refused_by_name(case: str, feature: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=feature):
        load(write_model(tmp_path / "m.gguf", case))


def test_a_tensor_in_an_unread_format_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"format \d+ of .*; supported: F32, F16, Q4_0, "):
        load(write_model(tmp_path / "m.gguf", "llama", "MXFP4"))


def test_a_missing_shard_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    files: Any = SimpleNamespace(path=tmp_path, layouts={})
    with pytest.raises(ModelError, match=r"gone\.safetensors can't be read"):
        map_folder_tensors(files)
