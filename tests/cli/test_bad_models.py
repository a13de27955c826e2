"""Unusable model folders: each gives exit code 2 and one sentence with a remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.cli.conftest import Command, Models
from tests.toy_tokenizers import toy_backend

WEIGHTS = "model.safetensors"


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def cut_file(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def give_tokenizer(folder: Path, kind: str) -> None:
    toy_backend(kind).save(str(folder / "tokenizer.json"))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "There is no model folder"),
    "a file": (lambda f: (shutil.rmtree(f), f.write_text("x")), "is a file, not a model folder"),
    "empty folder": (lambda f: (shutil.rmtree(f), f.mkdir()), "has no config.json"),
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "config is no JSON": (lambda f: cut_file(f / "config.json", 50), "config"),
    "wrong type of a value": (lambda f: edit_config(f, num_hidden_layers="two"), "num_hidden_layers"),
    "config is empty": (lambda f: (f / "config.json").write_text(""), "config"),
    "config is binary": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "config"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "config"),
    "config without a type": (lambda f: (f / "config.json").write_text("{}"), "config"),
    "unknown type": (lambda f: edit_config(f, model_type="abacus"), "abacus"),
    "negative size": (lambda f: edit_config(f, hidden_size=-128), "can't be loaded"),
    "other sizes than the weights": (lambda f: edit_config(f, intermediate_size=128), "model"),
    "fewer rows than ids": (lambda f: edit_config(f, vocab_size=300), "model"),
    "recurrent": (lambda f: edit_config(f, model_type="mamba"), "recurrent"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "no *.safetensors weights"),
    "pickled weights": (lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"), "pickled weights are not read"),
    "empty weights": (lambda f: (f / WEIGHTS).write_bytes(b""), "truncated or corrupt"),
    "cut header": (lambda f: cut_file(f / WEIGHTS, 100), "truncated or corrupt"),
    "cut data": (lambda f: cut_file(f / WEIGHTS, 300_000), "truncated or corrupt"),
    "one tensor missing": (drop_tensor, "lack 1 tensors (first: model.layers.1.mlp.up_proj.weight)"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer"),
    "cut tokenizer": (lambda f: cut_file(f / "tokenizer.json", 5000), "tokenizer.json"),
    "empty tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer"),
    "tokenizer is a list": (lambda f: (f / "tokenizer.json").write_text("[1]"), "tokenizer.json"),
    "corrupt tokenizer_config": (lambda f: (f / "tokenizer_config.json").write_text("{"), "tokenizer_config.json"),
    "lossy tokenizer": (lambda f: give_tokenizer(f, "wordpiece"), "WordPiece"),
    "normalizing tokenizer": (lambda f: give_tokenizer(f, "nfkc"), "NFKC"),
}


@pytest.fixture
def folder(models: Models, tmp_path: Path) -> Path:
    """Return a target to break."""
    return Path(shutil.copytree(models.target, tmp_path / "model"))


@pytest.mark.parametrize("case", BROKEN)
def test_target(case: str, folder: Path, source: Path, command: Command) -> None:
    damage, words = BROKEN[case]
    damage(folder)
    done = command("complete", f"{source}:11:20", "--target", folder, "--drafter", "none", "--max-tokens", "4")
    done.check_mistake(words)
