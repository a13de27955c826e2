"""Pretraining learns, stops on signals, resumes to the same bits, and rejects bad files."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from codespec_lab.corpus.documents import Document
from codespec_lab.training.export import export_model
from codespec_lab.training.llama import IGNORED, LlamaShape, TinyLlama, head_loss
from codespec_lab.training.pretrain import PretrainRun, Recipe, pretrain, start_run
from codespec_lab.training.run import (
    Budget,
    learning_rate_factor,
    load_checkpoint,
    orthogonalise,
    save_checkpoint,
    working_seconds,
)
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaForCausalLM

from codespec.errors import TrainingError


def weights(run: PretrainRun) -> list[torch.Tensor]:
    states = [*run.matrices.state.values(), *run.others.state.values()]
    moments = [value for state in states for value in state.values()]
    return [*run.model.state_dict().values(), *moments]


def test_a_resumed_run_repeats_the_undisturbed_one_bit_for_bit(
    recipe: Recipe, documents: list[Document], tokenizers: dict[str, Tokenizer], tmp_path: Path
) -> None:
    steps: list[int] = []

    def interrupt(run: PretrainRun) -> None:
        steps.append(run.state.step)
        if run.state.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    tokenizer = tokenizers["drafter"]
    calm, arrived = pretrain(recipe, documents, tokenizer, tmp_path / "calm")
    assert arrived and calm.state.step == 8
    handler = signal.getsignal(signal.SIGTERM)
    stopped, arrived = pretrain(recipe, documents, tokenizer, tmp_path / "cut", on_checkpoint=interrupt)
    assert not arrived and stopped.state.step == 3 and steps[-1] == 3
    assert signal.getsignal(signal.SIGTERM) is handler
    resumed, arrived = pretrain(recipe, documents, tokenizer, tmp_path / "cut", resume=True)
    assert arrived and resumed.state.tokens == calm.state.tokens
    assert all(torch.equal(a, b) for a, b in zip(weights(calm), weights(resumed), strict=True))
    assert not torch.equal(weights(stopped)[0], weights(calm)[0])


def test_training_learns(
    recipe: Recipe, documents: list[Document], tokenizers: dict[str, Tokenizer], tmp_path: Path
) -> None:
    longer = replace(recipe, budget=Budget(steps=60), checkpoint_seconds=1e9)
    held_out = [document.text[:1000] for document in documents[:3]]
    short = replace(longer, budget=Budget(steps=1))
    before, _ = pretrain(short, documents, tokenizers["target"], tmp_path / "a", held_out=held_out)
    after, _ = pretrain(longer, documents, tokenizers["target"], tmp_path / "a", resume=True, held_out=held_out)
    first, last = (after.state.history[i]["bits_per_byte"] for i in (0, -1))
    assert before.state.step == 1 and after.state.step == 60
    assert last < 0.85 * first


def test_a_corrupted_or_missing_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    with pytest.raises(TrainingError, match="There is no checkpoint"):
        load_checkpoint(path)
    save_checkpoint(path, {"step": 3, "weight": torch.ones(100)})
    assert load_checkpoint(path)["step"] == 3
    good = path.read_bytes()
    for bad in (good[:-1], good[:200] + b"\x00\x01" + good[202:], b"", b"text"):
        path.write_bytes(bad)
        with pytest.raises(TrainingError, match="is corrupted; delete it and start without --resume"):
            load_checkpoint(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence_and_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    save_checkpoint(path, {"step": 1})
    (tmp_path / "run.ckpt.part").symlink_to("/dev/full")
    with pytest.raises(TrainingError, match=r"cannot be written \(No space left on device\)"):
        save_checkpoint(path, {"step": 2})
    assert load_checkpoint(path)["step"] == 1


def test_the_exported_folder_is_the_same_function_in_transformers(
    shape: LlamaShape, tokenizers: dict[str, Tokenizer], tmp_path: Path
) -> None:
    model = TinyLlama(shape, seed=1)
    for weight in model.parameters():
        weight.data = (weight.data * 3).to(torch.bfloat16).float()
    export_model(model, tokenizers["target"], tmp_path, "card")
    loaded = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(0, shape.vocab_size, (2, 50), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), loaded(ids).logits, atol=1e-4, rtol=1e-4)
    assert loaded.generation_config.eos_token_id == tokenizers["target"].token_to_id("<|endoftext|>")


def test_the_head_loss_has_the_value_and_gradients_of_cross_entropy() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(1200, 16, requires_grad=True), torch.randn(40, 16, requires_grad=True)
    labels = torch.randint(0, 40, (1200,))
    labels[::7] = IGNORED
    expected = functional.cross_entropy(hidden @ weight.T, labels, ignore_index=IGNORED)
    wanted = torch.autograd.grad(2 * expected, (hidden, weight))
    loss = head_loss(hidden, weight, labels)
    torch.testing.assert_close(loss, expected)
    for got, want in zip(torch.autograd.grad(2 * loss, (hidden, weight)), wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("size", [(24, 60), (60, 24), (32, 32)])
def test_orthogonalise_evens_out_singular_values(size: tuple[int, int]) -> None:
    matrix = torch.randn(size, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrix))
    assert values.max() < 1.3 and values.median() > 0.6
    assert (orthogonalise(matrix) * matrix).sum() > 0


def test_a_pause_does_not_use_up_the_budget() -> None:
    assert working_seconds(0.5) == 0.5
    assert working_seconds(900.0) == 10.0
    budget = Budget(minutes=2)
    assert budget.progress(60.0, 10**6) == 0.5 and budget.progress(500.0, 0) == 1.0


def test_the_rate_rises_then_falls_to_almost_nothing() -> None:
    assert learning_rate_factor(0, 0.0, warmup_steps=10) == pytest.approx(0.1)
    assert learning_rate_factor(9, 0.0, warmup_steps=10) == 1.0
    assert learning_rate_factor(500, 0.5, warmup_steps=10) == 0.5
    assert 0 < learning_rate_factor(1000, 1.0, warmup_steps=10) <= 0.02


def test_a_run_can_begin_with_the_weights_of_another(
    recipe: Recipe, documents: list[Document], tokenizers: dict[str, Tokenizer], tmp_path: Path
) -> None:
    tokenizer = tokenizers["drafter"]
    first, _ = pretrain(recipe, documents, tokenizer, tmp_path / "first")
    export_model(first.model, tokenizer, tmp_path / "folder", "card")
    begun = start_run(recipe, tokenizer, None, tmp_path / "folder")
    for name, value in first.model.state_dict().items():
        assert torch.equal(begun.model.state_dict()[name], value.bfloat16().float())
    assert begun.state.step == 0
    with pytest.raises(TrainingError, match="has no weights that can be read"):
        start_run(recipe, tokenizer, None, tmp_path)
    other = replace(recipe, shape=replace(recipe.shape, layers=3))
    with pytest.raises(TrainingError, match="have another shape: give a folder of the same pair"):
        start_run(other, tokenizer, None, tmp_path / "folder")


def test_a_run_is_not_resumed_with_another_tokenizer(
    recipe: Recipe, documents: list[Document], tokenizers: dict[str, Tokenizer], tmp_path: Path
) -> None:
    pretrain(recipe, documents, tokenizers["drafter"], tmp_path / "run")
    with pytest.raises(TrainingError, match="belongs to another tokenizer: give the same --start"):
        pretrain(recipe, documents, tokenizers["target"], tmp_path / "run", resume=True)
