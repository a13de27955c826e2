"""A padded model has the small one's texts: every axis padded, each architecture, and planted faults."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from codespec_lab.bench import enlarge
from codespec_lab.bench.enlarge import Axes, enlarged, write_enlarged
from codespec_lab.bench.shapes import OWN, SHAPES, ModelSizes
from torch import Tensor

from codespec.api.config import SHIPPED, EngineConfig
from codespec.api.types import CompletionRequest
from codespec.backends.language_model import LanguageModel, Rows
from codespec.backends.loader import load_model
from codespec.errors import ModelError
from tests.backends.test_loader import KIND, save
from tests.pairs import build, run
from tests.tiny_models import sample_ids
from tests.toy_tokenizers import toy_tokenizer

OWN_ROWS = toy_tokenizer(KIND).vocab_size + 4  # of the folders that `save` writes
# From two key heads of 32 with two query heads each: one more key head, two more query heads for each, all else wider.
TOY = ModelSizes("toy", hidden=204, layers=4, query=384, keys=96, inner=300, vocabulary=OWN_ROWS + 200, tied=True)
EPS = 0.3  # large enough to matter for these models' rows
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
}
BILLIONS = {"0.5b": 0.494032768, "1.5b": 1.543714304, "7b": 7.615616512, "32b": 32.763876352}


def pair_of(folder: Path, case: str, shape: ModelSizes = TOY) -> tuple[LanguageModel, LanguageModel]:
    """Return a tiny model and its enlarged version."""
    architecture, change = CASES[case]
    small = save(folder / "small", architecture, **{"rms_norm_eps": EPS, **change})
    write_enlarged(small, shape, folder / "large")
    return load_model(str(small)), load_model(str(folder / "large"))


def ragged_logits(model: LanguageModel) -> Tensor:
    """Return the logits of three sequences in one forward, then of rows after each, with a rejection."""
    model.allocate(3, 96)
    ids = [sample_ids(80, seed) for seed in range(3)]
    for slot in range(3):
        model.admit(slot, 96)
    first = model.forward([Rows(slot, 0, ids[slot][:n], keep=n) for slot, n in enumerate((40, 9, 23))])
    model.rollback(0, 37)
    behind = [Rows(slot, at, ids[slot][at : at + n], keep=n) for slot, at, n in ((2, 23, 5), (0, 37, 1), (1, 9, 40))]
    return torch.cat([first, model.forward(behind)])


def gap(small: LanguageModel, large: LanguageModel) -> float:
    """Return the largest difference of log-probabilities, or infinity if an added id is likely."""
    wanted, got = (ragged_logits(model).log_softmax(1) for model in (small, large))
    own, added = got[:, : wanted.shape[1]], got[:, wanted.shape[1] :]
    assert wanted.std() > 0.1
    return float((own - wanted).abs().max()) if bool((added < -50).all()) else inf


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_same_function(case: str, tied: bool, tmp_path: Path) -> None:
    small, large = pair_of(tmp_path, case, replace(TOY, tied=tied))
    assert gap(small, large) <= 2e-4
    assert large.spec.lean == small.spec.lean
    assert large.spec.vocab_size == TOY.vocabulary and len(large.shapes) == TOY.layers
    assert {heads * size for heads, size, _ in large.shapes.values()} == {TOY.keys}


def mix_the_groups(patch: pytest.MonkeyPatch) -> None:
    """Lay out query heads as if those of one key head were not adjacent."""
    patch.setitem(enlarge.AXES, "q_proj", (("groups", "kv_heads", "head"), ("hidden",)))


def mix_the_outputs(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(enlarge.AXES, "o_proj", (("hidden",), ("groups", "kv_heads", "head")))


def let_added_ids_speak(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enlarge, "LOW", 0.0)


@pytest.mark.parametrize("fault", [mix_the_groups, mix_the_outputs, let_added_ids_speak])
def test_planted_faults_show(fault: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fault(monkeypatch)
    assert gap(*pair_of(tmp_path, "llama")) > 1e-3


def test_eps_is_shared_out(tmp_path: Path) -> None:
    """The norms' eps pays for the wider rows and for the constant feature."""
    pair_of(tmp_path, "llama")
    config = json.loads((tmp_path / "large" / "config.json").read_text())
    assert 0 < config["rms_norm_eps"] < EPS * 128 / TOY.hidden
    config["rms_norm_eps"] = EPS
    (tmp_path / "large" / "config.json").write_text(json.dumps(config))
    assert gap(load_model(str(tmp_path / "small")), load_model(str(tmp_path / "large"))) > 1e-3


@pytest.mark.parametrize("name", SHAPES)
def test_real_sizes(name: str) -> None:
    """The starter pair fits every shape, which has as many weights as the real model without biases and norms."""
    shape = SHAPES[name]
    grown = Axes.of(json.loads((SHIPPED / "target" / "config.json").read_text())).grown(shape)
    assert (grown.hidden, grown.layers, grown.inner) == (shape.hidden, shape.layers, shape.inner)
    assert (grown.kv_heads * grown.head, grown.kv_heads * grown.groups * grown.head) == (shape.keys, shape.query)
    rest = shape.layers * (shape.query + 2 * shape.keys) + (2 * shape.layers + 1) * shape.hidden
    assert shape.parameters + rest == round(1e9 * BILLIONS[name.removeprefix("qwen2.5-")])


def refusal_of(folder: Path, shape: ModelSizes) -> str:
    with pytest.raises(ModelError) as caught:
        write_enlarged(folder, shape, folder / "large")
    assert shape.name in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("architecture", ["gemma2", "gpt2", "qwen3"])
def test_other_architectures(architecture: str, tmp_path: Path) -> None:
    assert "choose a Llama, Mistral or Qwen2" in refusal_of(save(tmp_path, architecture), TOY)


@pytest.mark.parametrize(
    ("axis", "change"),
    [
        ("hidden", {"hidden": 128}),
        ("layers", {"layers": 1}),
        ("kv_heads", {"keys": 32, "query": 384}),
        ("groups", {"query": 96}),
        ("inner", {"inner": 255}),
        ("vocabulary", {"vocabulary": OWN_ROWS - 1}),
    ],
)
def test_shapes_that_are_too_small(axis: str, change: dict[str, int], tmp_path: Path) -> None:
    assert f"too small for this target ({axis} " in refusal_of(save(tmp_path), replace(TOY, **change))


def test_heads_that_do_not_fit(tmp_path: Path) -> None:
    assert "which heads of 32 can't fill" in refusal_of(save(tmp_path), replace(TOY, keys=80, query=240))


def test_added_ids_are_never_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, TOY.name, TOY)
    config = EngineConfig(target=str(save(tmp_path / "model")))
    hot = CompletionRequest(
        prefix="import os\n", temperature=2.0, top_k=0, max_tokens=60, n=4, repetition_penalty=1.2, seed=1
    )
    with enlarged(config, TOY.name) as large:
        assert Path(large.target).name == "model-as-toy"
        done = run(build(load_model(large.target)), [hot])
    ids = [token for one in done for token in one.token_ids]
    assert len(ids) >= 60 and max(ids) < OWN_ROWS
    assert not Path(large.target).exists()
    with enlarged(config, OWN) as same:
        assert same == config
