"""`codespec train` from arguments to model folders, with tiny shapes."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from codespec_lab.commands.train import add_train_arguments
from codespec_lab.corpus.sources import Package
from codespec_lab.corpus.standard_library import held_out_files
from codespec_lab.training import command, pair
from codespec_lab.training.llama import LlamaShape
from codespec_lab.training.pretrain import Recipe
from codespec_lab.training.run import Budget
from codespec_lab.training.tokenizer_training import SPECIALS
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from codespec.api.config import SHIPPED
from codespec.errors import TrainingError


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_train_arguments(parser)
    return command.run_train(parser.parse_args(words))


@pytest.fixture
def tiny_world(monkeypatch: pytest.MonkeyPatch, shape: LlamaShape, recipe: Recipe) -> None:
    """A corpus of a dozen files, tiny shapes, three steps a model."""
    files = tuple(held_out_files()[:12])
    monkeypatch.setattr(command, "stdlib_package", lambda: Package("stdlib", "3", "PSF-2.0", files))
    monkeypatch.setattr(command, "header_package", lambda: Package("headers", "3", "PSF-2.0", ()))
    for name in pair.SHAPES:
        monkeypatch.setitem(pair.SHAPES, name, shape)

    def make(name: str, budget: Budget, *, seed: int, device: str, rate: float = 1.0) -> Recipe:
        rates = {"matrix_rate": rate * recipe.matrix_rate, "other_rate": rate * recipe.other_rate}
        return replace(recipe, name=name, budget=Budget(steps=3), seed=seed, device=device, **rates)

    monkeypatch.setattr(command, "make_recipe", make)
    monkeypatch.setattr(pair, "HELD_OUT_EXCERPTS", 3)


def train_both(work: Path, out: Path) -> None:
    """Collect the corpus and train both tokenizers and models."""
    for words in (
        ["corpus"],
        ["tokenizers"],
        *(["pretrain", name, "--out", str(out)] for name in ("drafter", "target")),
    ):
        assert run("--work", str(work), *words) == 0


@pytest.mark.usefixtures("tiny_world")
def test_training_makes_two_folders_that_transformers_loads(tmp_path: Path) -> None:
    train_both(tmp_path / "work", tmp_path / "out")
    for name in ("target", "drafter"):
        for folder in (tmp_path / "out" / name, tmp_path / "work" / "preview" / name):
            model = AutoModelForCausalLM.from_pretrained(folder)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            done = model.generate(**tokenizer("def f(", return_tensors="pt"), max_new_tokens=3, do_sample=False)
            assert done.shape[1] > 3
        card = (tmp_path / "out" / name / "README.md").read_text(encoding="utf-8")
        assert "bits per byte" in card and "PSF-2.0: 1" in card and "unmeasured" not in card
        config = json.loads((tmp_path / "out" / name / "tokenizer_config.json").read_text(encoding="utf-8"))
        assert config["codespec_fim_orders"] == ["psm", "spm"]
    begun = ("--start", str(tmp_path / "out" / "drafter"), "--rate", "0.001", "--out", str(tmp_path / "on"))
    assert run("--work", str(tmp_path / "work"), "pretrain", "drafter", *begun, "--threads", "1") == 0
    assert "trained from the weights of out/drafter by" in (tmp_path / "on" / "drafter" / "README.md").read_text(
        "utf-8"
    )
    old, new = (load_file(tmp_path / place / "drafter" / "model.safetensors") for place in ("out", "on"))
    assert all(torch.allclose(old[name].float(), new[name].float(), atol=1e-3) for name in old), "a low rate"


@pytest.mark.usefixtures("tiny_world")
def test_a_drafter_in_another_models_tokens(tmp_path: Path) -> None:
    work, out = ("--work", str(tmp_path / "work")), tmp_path / "out"
    train_both(tmp_path / "work", out)
    assert run(*work, "cut-tokenizer", str(SHIPPED / "target")) == 0
    begun = ("--layers", str(out / "drafter"), "--out", str(out), "--threads", "1")
    assert run(*work, "pretrain", "qwen-drafter", *begun) == 0
    folder = out / "qwen-drafter"
    tokens = AutoTokenizer.from_pretrained(folder).get_vocab().keys() - {*SPECIALS}
    assert tokens < AutoTokenizer.from_pretrained(SHIPPED / "target").get_vocab().keys()
    assert "trained from the weights of out/drafter by" in (folder / "README.md").read_text("utf-8")
    theirs, own = (load_file(out / name / "model.safetensors") for name in ("drafter", "qwen-drafter"))
    assert all(torch.allclose(theirs[name].float(), own[name].float(), atol=0.1) for name in own if "embed" not in name)
    with pytest.raises(SystemExit):
        run(*work, "pretrain", "qwen-drafter", "--start", str(folder), *begun)


def test_pretraining_without_a_corpus_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="run `codespec train corpus` first"):
        run("--work", str(tmp_path), "pretrain", "drafter", "--minutes", "1")
