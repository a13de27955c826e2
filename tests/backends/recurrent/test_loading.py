"""Folders of models with recurrent layers: they load in every format, and what loads is decided by their layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from codespec.backends.language_model import Rows
from codespec.backends.loader import load_model
from codespec.backends.torch import loader
from codespec.backends.torch import loader as torch_loader
from codespec.backends.torch.model_check import TOLERANCE, gap, quiet
from codespec.backends.torch.recurrent_layers import RecurrentLayer, ShortConvolution
from codespec.errors import ModelError
from tests.tiny_models import sample_ids, tiny_config, tiny_network
from tests.toy_tokenizers import toy_backend, toy_tokenizer

KIND = "gpt2"
IDS = sample_ids(40)
ELSEWHERE = "has recurrent layers, which run only on a CPU: set device to cpu"


def save(folder: Path, network: Any) -> str:
    with quiet():
        network.save_pretrained(folder)
    toy_backend(KIND).save(str(folder / "tokenizer.json"))
    return str(folder)


def network(architecture: str, **change: Any) -> Any:
    return tiny_network(architecture, vocab_size=toy_tokenizer(KIND).vocab_size, attention="eager", **change)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "native"])
@pytest.mark.parametrize("architecture", ["qwen3_5", "olmo_hybrid", "lfm2"])
def test_every_format(architecture: str, dtype: str, tmp_path: Path) -> None:
    plain = network(architecture)
    model = load_model(save(tmp_path, plain), dtype=dtype)
    assert model.exact and model.states and model.spec.dtype == dtype
    model.allocate(1, 64)
    got = model.forward([Rows(0, 0, IDS, keep=len(IDS))])[:, : model.spec.vocab_size]
    with torch.inference_mode():
        wanted = plain(torch.tensor([IDS])).logits[0, :, : model.spec.vocab_size]
    form = getattr(torch, dtype) if dtype != "native" else torch.bfloat16
    assert gap(got, wanted, form) < TOLERANCE[form]


def test_a_checkpoint_with_a_vision_tower(tmp_path: Path) -> None:
    """Qwen3.5 is published with one; only the language model is loaded."""
    text = tiny_config("qwen3_5", vocab_size=toy_tokenizer(KIND).vocab_size).to_dict()
    seen = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 128}
    torch.manual_seed(0)
    with quiet():
        whole = transformers.Qwen3_5ForConditionalGeneration(
            transformers.Qwen3_5Config(text_config=text, vision_config=seen, tie_word_embeddings=False)
        ).eval()
    model = load_model(save(tmp_path, whole))
    assert len(model.states) == 1
    model.allocate(1, 64)
    got = model.forward([Rows(0, 0, IDS)])
    with torch.inference_mode():
        wanted = whole(input_ids=torch.tensor([IDS])).logits[0, -1:]
    assert gap(got[:, : model.spec.vocab_size], wanted[:, : model.spec.vocab_size], torch.float32) < 1e-4


@pytest.mark.parametrize("architecture", ["granitemoehybrid", "lfm2"])
def test_attention_alone_is_not_refused_for_its_name(architecture: str, tmp_path: Path) -> None:
    folder = save(tmp_path, network(architecture, layer_types=["full_attention"] * 2))
    model = load_model(folder)
    assert not model.states and not any(isinstance(part, RecurrentLayer) for part in model.network.modules())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gpu_is_refused_in_one_sentence(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path, network("qwen3_5"))
    monkeypatch.setattr(torch_loader, "find_device", lambda device: torch.device("meta"))
    with pytest.raises(ModelError, match=ELSEWHERE):
        load_model(folder, device="cuda", dtype=dtype)


def test_a_layer_of_another_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "RECURRENT", (ShortConvolution,))
    folder = save(tmp_path, network("olmo_hybrid"))
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert "its layers keep a recurrent state of a kind that can't be rolled back yet" in str(caught.value)


@pytest.mark.parametrize("architecture", ["granitemoehybrid", "mamba2", "bamba", "falcon_h1"])
def test_mamba2_is_refused_with_what_to_choose(architecture: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"recurrent layers of a kind .*: choose a model with attention, gated delta"):
        load_model(save(tmp_path, network(architecture)))
