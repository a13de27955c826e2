"""`codespec train head`: from a target's texts to a head's folder, with resuming, errors and learning."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from codespec_lab.corpus.documents import Document, write_documents
from codespec_lab.training.distill.texts import DistillationExample, read_examples, save_examples
from codespec_lab.training.heads.command import _texts, corpus_texts
from codespec_lab.training.heads.features import collect_features
from codespec_lab.training.heads.run import HeadRun
from codespec_lab.training.pair import WorkFolder
from safetensors.torch import load_file, save_file

from codespec.contract.engine_config import SHIPPED
from codespec.errors import ModelError, TrainingError
from codespec.models.heads.checkpoint import load_head
from codespec.models.heads.config import Kind
from codespec.models.heads.host import Host
from codespec.models.loader import load_model
from lab.tests.training.test_command import run


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, documents: list[Document]) -> Path:
    """A few texts, as if the target had written them."""
    made = []
    for number, document in enumerate(documents * 2):
        at = 400 + 90 * number
        piece = document.text[at - 300 : at + 300]
        ending = piece[420:] if number % 2 else ""
        made.append(DistillationExample(f"{number}.py", piece[:300], piece[300:420], ending, ended=number % 3 == 0))
    path = tmp_path_factory.mktemp("examples") / "texts.jsonl.gz"
    save_examples(path, made)
    return path


def train(tmp_path: Path, examples: Path, kind: str, *more: str, out: str = "head") -> int:
    words = ("--draft-vocab", "512", "--block", "4", "--threads", "1", *more)
    given = ("--kind", kind, "--examples", str(examples), "--out", str(tmp_path / out), *words)
    return run("--work", str(tmp_path / "work"), "head", *given)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_head_is_written_that_its_target_loads(kind: str, tmp_path: Path, examples: Path) -> None:
    assert train(tmp_path, examples, kind, "--steps", "3") == 0
    folder = tmp_path / "head"
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config["codespec"]["target"]["name"] == "target" and config["draft_vocab_size"] == 512
    weights = load_file(folder / "model.safetensors")
    assert not [name for name in weights if "lm_head" in name or "embed" in name], "these tensors stay in the target"
    assert f"for {config['codespec']['target']['name']}" in (folder / "README.md").read_text("utf-8")
    model = load_model(str(SHIPPED / "target"), exact=False)
    host = Host.of(model)
    head = load_head(folder, host, dtype=torch.float32, device=torch.device("cpu"))
    assert head.config.kind == kind and len(head.ids) == 512 and bool((head.ids.diff() > 0).all())
    assert torch.equal(head.network.lm_head.weight, host.output_rows(head.ids).float())  # type: ignore[arg-type]
    other = Host.of(load_model(str(SHIPPED / "drafter"), exact=False))
    with pytest.raises(ModelError, match="was trained for another target"):
        load_head(folder, other, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_resumed_run_repeats_the_whole_one(kind: str, tmp_path: Path, examples: Path) -> None:
    assert train(tmp_path, examples, kind, "--steps", "2", out="whole") == 0
    with pytest.raises(TrainingError, match="already exists"):
        train(tmp_path, examples, kind, "--steps", "2", out="whole")
    with pytest.MonkeyPatch.context() as patch:
        step = HeadRun.step

        def stop_after_one(one: HeadRun) -> float:
            loss = step(one)
            if one.state.step == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return loss

        patch.setattr(HeadRun, "step", stop_after_one)
        assert train(tmp_path, examples, kind, "--steps", "2", out="part") == 3
        assert (tmp_path / "part.ckpt").is_file()
    assert train(tmp_path, examples, kind, "--steps", "2", "--resume", out="part") == 0
    whole, part = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "part"))
    assert whole.keys() == part.keys() and all(torch.equal(whole[name], part[name]) for name in whole)
    with pytest.raises(TrainingError, match="another target or another kind"):
        train(tmp_path, examples, "dflash" if kind == "eagle3" else "eagle3", "--steps", "9", "--resume", out="part")


def test_what_is_held_out_is_of_files_that_are_not_learned_from(tmp_path: Path) -> None:
    made = [DistillationExample(f"{number % 7}.py", str(number), "x", "", ended=False) for number in range(28)]
    save_examples(tmp_path / "texts.jsonl.gz", made)
    args = argparse.Namespace(examples=tmp_path / "texts.jsonl.gz", read=0, seed=3)
    texts = _texts(args, WorkFolder(tmp_path))
    assert sorted(texts, key=lambda text: int(text.prefix)) == made
    assert len({text.path for text in texts[:24]} & {text.path for text in texts[24:]}) == 0
    assert [text.path for text in texts] != sorted(text.path for text in texts), "shuffled, not sorted by name"


def test_what_a_target_said_is_not_taken_for_what_an_adapted_one_says(tmp_path: Path, examples: Path) -> None:
    """Token vectors and tokenizers are the same; only one layer's weights differ."""
    adapted = tmp_path / "adapted"
    shutil.copytree(SHIPPED / "target", adapted)
    weights = load_file(adapted / "model.safetensors")
    name = next(name for name in weights if name.endswith("down_proj.weight"))
    save_file({**weights, name: weights[name] + 0.01}, adapted / "model.safetensors", {"format": "pt"})
    texts = read_examples(examples)[:2]
    for target in (SHIPPED / "target", adapted, SHIPPED / "target"):
        collect_features(load_model(str(target), exact=False), [1], texts, tmp_path / "features")
    assert len(list((tmp_path / "features").iterdir())) == 2


def test_texts_of_the_corpus_are_read_too(tmp_path: Path, documents: list[Document]) -> None:
    texts = corpus_texts(documents, 12, seed=1)
    assert texts == corpus_texts(documents, 12, seed=1) != corpus_texts(documents, 12, seed=2)
    whole = [document.text for document in documents]
    for text in texts:
        assert any(text.prefix + text.middle + text.suffix in one for one in whole) and text.prefix and text.middle
    assert len({bool(text.suffix) for text in texts}) == 2, "half of them are to be filled in"
    with pytest.raises(TrainingError, match="no file long enough"):
        corpus_texts([replace(documents[0], text="short")], 1, seed=0)
    (tmp_path / "work").mkdir()
    write_documents(tmp_path / "work" / "corpus.jsonl.gz", documents)
    words = ("head", "--kind", "eagle3", "--out", str(tmp_path / "head"), "--steps", "2", "--draft-vocab", "512")
    assert run("--work", str(tmp_path / "work"), *words, "--read", "4", "--threads", "1") == 0
    assert "4 texts" in (tmp_path / "head" / "README.md").read_text("utf-8")
