"""Model folders built to exhaust the machine: the real command answers each with one sentence.

It needs little more memory and time than for a valid model.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import zeros

from tests.cli.conftest import Models
from tests.cli.processes import ENGINE, LIGHT, Ended, fork
from tests.cli.test_bad_models import WEIGHTS, edit_config

NESTED = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
MEMORY = 256 << 20  # bytes more than for a valid model; the largest of these files is 60 MB
SLOW = r"(\w+\.?)+!"  # exponential for a backtracking engine, in the length of a layer's name
SECONDS = 4.0  # processor time more than for a valid model, without importing the packages
# The merge runs in the command's own process: another one would first import torch and transformers again.
MERGE_HERE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from codespec.store import conversions
from tests.converters import convert_here
conversions.run_converter = convert_here
"""


def edit_tokenizer(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / "tokenizer.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def give_id(document: dict[str, Any]) -> None:
    document["model"]["vocab"]["zzzzzz"] = 2**31


def give_expression(document: dict[str, Any]) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(?:a|aa)+b|x"}, "behavior": "Isolated", "invert": False}
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, document["pre_tokenizer"]]}


def give_merges(folder: Path) -> None:
    file = folder / "tokenizer.json"
    document = json.loads(file.read_text())
    document["model"]["merges"] = "HERE"
    file.write_text(json.dumps(document).replace('"HERE"', "[" + '"a b",' * 10_000_000 + '"a b"]'))


def give_header(folder: Path, header: str, length: int | None = None) -> None:
    size = len(header) if length is None else length
    (folder / WEIGHTS).write_bytes(size.to_bytes(8, "little") + header.encode() + bytes(16))


def give_pipe(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


LARGE = '{"a": {"dtype": "F32", "shape": [1073741824, 1073741824], "data_offsets": [0, 16]}}'
# Detected without torch, by `codespec check`.
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a thousand million layers": (lambda f: edit_config(f, num_hidden_layers=10**9), "num_hidden_layers = 1000000000"),
    "20,000 layers": (lambda f: edit_config(f, num_hidden_layers=20_000), "its weights have 2 layers"),
    "labels": (lambda f: edit_config(f, num_labels=10**9), "num_labels"),
    "a vocabulary": (lambda f: edit_config(f, vocab_size=2**31), "vocab_size = 2147483648"),
    "an id": (lambda f: edit_tokenizer(f, give_id), "tokens but the id 2147483648"),
    "merges": (give_merges, "more than 8388608 commas"),
    "an expression": (lambda f: edit_tokenizer(f, give_expression), "regular expression"),
    "nested config": (lambda f: (f / "config.json").write_text(NESTED), "brackets deep"),
    "nested tokenizer": (lambda f: (f / "tokenizer.json").write_text(NESTED), "brackets deep"),
    "nested tokenizer_config": (lambda f: (f / "tokenizer_config.json").write_text(NESTED), "brackets deep"),
    "nested generation_config": (lambda f: (f / "generation_config.json").write_text(NESTED), "brackets deep"),
    "nested header": (lambda f: give_header(f, NESTED), "truncated or corrupt"),
    "a header of 2^62 bytes": (lambda f: give_header(f, "{}", 2**62), "truncated or corrupt"),
    "a tensor of 2^60": (lambda f: give_header(f, LARGE), "corrupt at tensor 'a'"),
    "a template that is a pipe": (lambda f: give_pipe(f, "chat_template.jinja"), "not a regular file"),
    "weights that are a pipe": (lambda f: give_pipe(f, WEIGHTS), "not a regular file"),
}
# Detected only by the loader.
LOADED: dict[str, tuple[Callable[[Path], object], str]] = {
    "sizes that are there, but not together": (
        lambda f: edit_config(f, hidden_size=2**16, intermediate_size=2**16, head_dim=2**14),
        "billion numbers, but its weights have",
    ),
    "a thousand million layers": FILES["a thousand million layers"],
    "nested generation_config": FILES["nested generation_config"],
    "a pipe beside the weights": (lambda f: give_pipe(f, "more.safetensors"), "not a regular file"),
}


def check_spent(done: Ended, words: str, sound: Ended) -> None:
    """Assert one sentence with the words, and little more than a valid model's memory and time."""
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (2, 1), done
    assert lines[0].startswith("codespec: ") and words in lines[0], lines[0]
    assert done.memory < sound.memory + MEMORY
    assert done.seconds < sound.seconds + SECONDS


@pytest.fixture
def folder(models: Models, tmp_path: Path) -> Path:
    """Return a target to break."""
    return Path(shutil.copytree(models.target, tmp_path / "model"))


def run(modules: tuple[str, ...], *words: str | Path, folder: Path, before: str = "") -> Ended:
    kept = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    return fork(*words, modules=modules, before=before, **kept)


def check(folder: Path, source: Path) -> Ended:
    return run(LIGHT, "check", "--target", folder, "--drafter", folder, "--files", source, folder=source.parent)


def complete(folder: Path, source: Path, before: str = "") -> Ended:
    words = ("complete", f"{source}:1:3", "--target", folder, "--drafter", "none", "--max-tokens", "4")
    return run(ENGINE, *words, "--policy", "fixed", folder=source.parent, before=before)


@pytest.fixture(scope="module")
def sound(models: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Return the resources used for a valid model, by command."""
    source = tmp_path_factory.mktemp("sound") / "a.py"
    source.write_text("def f(x):\n    return x\n" * 20)
    found = {"check": check(models.target, source), "complete": complete(models.target, source)}
    assert [one.returncode for one in found.values()] == [0, 0], found
    return found


@pytest.mark.parametrize("case", FILES)
def test_files(case: str, folder: Path, source: Path, sound: dict[str, Ended]) -> None:
    damage, words = FILES[case]
    damage(folder)
    check_spent(check(folder, source), words, sound["check"])


@pytest.mark.parametrize("case", LOADED)
def test_loaded(case: str, folder: Path, source: Path, sound: dict[str, Ended]) -> None:
    damage, words = LOADED[case]
    damage(folder)
    check_spent(complete(folder, source), words, sound["complete"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"r": 10**9}, "states the rank 1000000000, but its weights have 2"),
        ({"r": 2, "trainable_token_indices": {"embed_tokens": [1] * 10**6}}, "states the number of tokens 1000000"),
        ({"r": 2, "layer_replication": [[0, 2]] * 10**5}, "is of an unsupported kind"),
        ({"r": 2, "rank_pattern": {SLOW: 2}}, "rank_pattern in the adapter"),
        ({"r": 2, "alpha_pattern": {SLOW: 2}}, "alpha_pattern in the adapter"),
        ({"r": 2, "modules_to_save": [SLOW]}, "modules_to_save in the adapter"),
        ({"r": 2, "modules_to_save": 5}, "modules_to_save in the adapter"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_adapters(
    settings: dict[str, Any], words: str, folder: Path, source: Path, tmp_path: Path, sound: dict[str, Ended]
) -> None:
    make_adapter(tmp_path / "adapter", folder, settings)
    check_spent(complete(tmp_path / "adapter", source), words, sound["complete"])


@pytest.mark.parametrize(
    "patterns",
    [{"target_modules": SLOW, "exclude_modules": SLOW}, {"layers_to_transform": [0], "layers_pattern": [SLOW]}],
    ids=["whole", "by number"],
)
def test_patterns_that_choose_an_adapters_layers_are_never_matched(
    patterns: dict[str, Any], folder: Path, source: Path, tmp_path: Path, sound: dict[str, Ended]
) -> None:
    """The adapter's weights determine which layers it changes."""
    make_adapter(tmp_path / "adapter", folder, {"r": 2, **patterns})
    done = complete(tmp_path / "adapter", source, MERGE_HERE)
    assert done.returncode == 0, done
    assert done.seconds < sound["complete"].seconds + SECONDS


def make_adapter(adapter: Path, folder: Path, settings: dict[str, Any]) -> None:
    """Make an adapter of one layer with these settings."""
    adapter.mkdir()
    whole = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "target_modules": ["q_proj"], **settings}
    (adapter / "adapter_config.json").write_text(json.dumps({**whole, "base_model_name_or_path": str(folder)}))
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{layer}.lora_A.weight": zeros(2, 128), f"{layer}.lora_B.weight": zeros(128, 2)}
    save_file(tensors, adapter / "adapter_model.safetensors")
