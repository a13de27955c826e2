"""The sources and cache key of a converted folder: every file that it copies, and only regular files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from codespec.errors import ModelError
from codespec.models.int8.convert import convert
from codespec.models.text_tokenizer import load_tokenizer
from codespec.store import conversions
from codespec.store.conversion_cache import hash_once
from codespec.store.conversions import convert_to_int8
from tests.pairs import network_for
from tests.toy_tokenizers import toy_backend, toy_tokenizer

KIND = "gpt2"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a model with float weights, and set up an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "model"
    network_for("llama", toy_tokenizer(KIND)).save_pretrained(place)
    toy_backend(KIND).save(str(place / "tokenizer.json"))
    return place


def use_old_files(folder: Path) -> None:
    """Replace tokenizer.json with vocab.json and merges.txt."""
    (folder / "tokenizer.json").unlink()
    toy_backend(KIND).model.save(str(folder))
    names = {"eos_token": "<|endoftext|>", "tokenizer_class": "GPT2Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def digest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the cache key of the int8 folder."""
    with monkeypatch.context() as patch:
        patch.setattr(conversions, "convert_once", lambda conversion: Path(conversion.digest))
        return str(convert_to_int8(folder))


def test_a_tokenizer_in_the_old_files_is_taken_over(folder: Path, tmp_path: Path) -> None:
    use_old_files(folder)
    (tmp_path / "int8").mkdir()
    convert(folder, tmp_path / "int8", "0" * 64)
    text = "def main(argv):\n\treturn 0\n"
    assert load_tokenizer(tmp_path / "int8").encode(text) == toy_tokenizer(KIND).encode(text)


@pytest.mark.parametrize("name", ["merges.txt", "tokenizer.model", "tokenizer.json", "chat_template.jinja"])
def test_another_tokenizer_is_another_conversion(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(folder, monkeypatch)
    (folder / name).write_text("1")
    assert digest(folder, monkeypatch) != before


@pytest.mark.parametrize("name", ["notes.json", "merges.txt", "chat_template.jinja"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_regular_files_are_opened(name: str, kind: str, folder: Path) -> None:
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    with pytest.raises(ModelError, match=rf"{name} can't be used \(it is not a regular file\): remove it"):
        convert_to_int8(folder)


def test_a_pipe_called_like_a_gguf_file_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=r"m\.gguf can't be used \(it is not a regular file\): "):
        convert_to_int8(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="it is not a regular file"):
        hash_once(tmp_path)
