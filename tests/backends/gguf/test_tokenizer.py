"""A GGUF file's vocabulary tokenizes text exactly like `llama.cpp`'s own tokenizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from codespec.backends.gguf.header import read_header
from codespec.backends.gguf.tokenizer import FAMILIES, Vocabulary, read_vocabulary
from codespec.errors import ModelError, TokenizerError
from codespec.store.pulled import find_pulled
from codespec.text.tokenizer import TextTokenizer
from tests.backends.gguf import llama_cpp_ids as theirs

REAL = "SmolLM2-135M-Instruct.Q4_1.gguf"
PRESENT = json.loads(theirs.FIXTURE.read_text(encoding="utf-8"))


def read(file: Path) -> Vocabulary:
    return read_vocabulary(read_header(file))


def tokenizer(vocabulary: Vocabulary) -> TextTokenizer:
    return TextTokenizer(vocabulary.document, config=vocabulary.settings, eos_ids=frozenset(vocabulary.eos_ids))


def different(mine: TextTokenizer, family: str, *, left_out: str = "") -> tuple[list[str], int]:
    """Return the texts with different ids, and the number of texts that cannot be encoded.

    Texts that contain `left_out` are skipped.
    """
    found, refused = [], 0
    for text, wanted in zip(theirs.texts(), theirs.split_digests(PRESENT[family]), strict=True):
        if left_out and left_out in text:
            continue
        try:
            if theirs.digests([mine.encode(text)]) != wanted:
                found.append(text)
        except TokenizerError:
            refused += 1
    return found, refused


@pytest.mark.parametrize("family", theirs.BYTE_LEVEL)
def test_byte_level_text_is_spelled_as_llama_cpp_spells_it(family: str, tmp_path: Path) -> None:
    theirs.write_vocabulary(tmp_path / "v.gguf", family)
    assert different(tokenizer(read(tmp_path / "v.gguf")), family) == ([], 0)


@pytest.mark.parametrize("family", theirs.PIECES)
def test_pieces_are_spelled_as_llama_cpp_spells_them(family: str, tmp_path: Path) -> None:
    """Except a literal U+2581, which llama.cpp turns into a space and codespec keeps as bytes."""
    theirs.write_vocabulary(tmp_path / "v.gguf", family)
    mine = tokenizer(read(tmp_path / "v.gguf"))
    assert different(mine, family, left_out="\u2581") == ([], 0)
    assert mine.decode_bytes(mine.encode("\u2581\u2581a"), at_start=True).decode() == "\u2581\u2581a"
    assert mine.dummy_prefix is (family == "spm")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.names[0])
def test_every_family_has_been_compared(family: Any) -> None:
    assert any(name in theirs.BYTE_LEVEL for name in family.names)


def test_the_comparison_can_fail(tmp_path: Path) -> None:
    """A vocabulary split with another family's pre-tokenizer: digits together, words by their merges."""
    for family, other in (("gpt-2", "smollm"), ("llama-bpe", "dbrx"), ("qwen2", "seed-coder")):
        file = tmp_path / f"{family}.gguf"
        theirs.write_vocabulary(file, family)
        assert len(different(tokenizer(read(file)), other)[0]) > 2


@pytest.fixture(scope="module")
def real_file() -> Path:
    """Return the reference model's file, pulled into this run's own store."""
    words = [sys.executable, "-P", "-m", "codespec", "models", "pull", "smollm2-135m"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "0"})
    file = find_pulled("smollm2-135m")
    assert done.returncode == 0 and file is not None, done.stderr
    return file


@pytest.mark.full
def test_the_real_vocabulary_is_spelled_as_llama_cpp_spells_it(real_file: Path) -> None:
    """Six texts contain characters without a token."""
    vocabulary = read(real_file)
    assert different(tokenizer(vocabulary), REAL) == ([], 6)
    assert (vocabulary.eos_ids, vocabulary.settings["add_bos_token"]) == ((0, 2), False)


def test_a_text_begins_as_the_file_says(tmp_path: Path) -> None:
    assert tokenizer(byte_level(tmp_path, "smollm")).bos_ids == ()
    assert tokenizer(byte_level(tmp_path, "smollm", add_bos=True)).bos_ids == (1,)
    assert tokenizer(byte_level(tmp_path, "llama-bpe", add_bos=None)).bos_ids == (1,)
    assert tokenizer(byte_level(tmp_path, "qwen2", add_bos=None)).bos_ids == ()
    theirs.write_vocabulary(tmp_path / "spm.gguf", "spm")
    assert tokenizer(read(tmp_path / "spm.gguf")).bos_ids == (1,)


def test_every_declared_end_ends_a_text(tmp_path: Path) -> None:
    assert byte_level(tmp_path, "smollm").eos_ids == (0,)
    assert byte_level(tmp_path, "smollm", eot=2).eos_ids == (0, 2)
    assert byte_level(tmp_path, "smollm", eos=2).eos_ids == (0, 2)  # <|endoftext|> by its name


def byte_level(
    folder: Path, pre: str, *, add_bos: bool | None = False, eos: int = 0, eot: int | None = None
) -> Vocabulary:
    """Return a small vocabulary with other settings."""
    writer = theirs.start(folder / "v.gguf")
    theirs.add_byte_level(writer, pre)
    changed = writer.kv_data[0]
    changed.pop("tokenizer.ggml.add_bos_token")
    changed.pop("tokenizer.ggml.eos_token_id")
    writer.add_eos_token_id(eos)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    if eot is not None:
        writer.add_eot_token_id(eot)
    theirs.finish(writer)
    return read(folder / "v.gguf")


def test_control_tokens_spell_nothing_and_own_tokens_are_text(tmp_path: Path) -> None:
    mine = tokenizer(byte_level(tmp_path, "smollm"))
    assert mine.special_ids == frozenset(range(len(theirs.CONTROL)))
    assert mine.token_bytes[len(theirs.CONTROL)] == theirs.OWN.encode()
    assert "[unused9]" not in mine.vocab


def pre(name: str) -> Any:
    def change(writer: Any) -> None:
        writer.kv_data[0].pop("tokenizer.ggml.pre")
        if name:
            writer.add_tokenizer_pre(name)

    return change


def replaced(key: str, value: list[Any]) -> Any:
    def change(writer: Any) -> None:
        writer.kv_data[0].pop(key)
        writer.add_array(key, value)

    return change


def without(key: str) -> Any:
    return lambda writer: writer.kv_data[0].pop(key)


def model(name: str) -> Any:
    def change(writer: Any) -> None:
        writer.kv_data[0].pop("tokenizer.ggml.model")
        writer.add_tokenizer_model(name)

    return change


def beyond(writer: Any) -> None:
    writer.kv_data[0].pop("tokenizer.ggml.eos_token_id")
    writer.add_eos_token_id(999_999)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (pre(""), "does not specify how its tokenizer splits text .*use a file that was converted after"),
        (pre("some-new-one"), "has the pre-tokenizer 'some-new-one'"),
        (model("bert"), "has the tokenizer 'bert'"),
        (without("tokenizer.ggml.tokens"), "has no vocabulary"),
        (replaced("tokenizer.ggml.token_type", [1, 1]), "its tokens and their types do not match"),
        (replaced("tokenizer.ggml.merges", ["x nothing"]), "its merges do not fit"),
        (replaced("tokenizer.ggml.merges", [1, 2]), "its merges are not strings"),
        (replaced("tokenizer.ggml.tokens", ["a", "a"]), "its tokens and their types do not match"),
        (beyond, "is beyond its vocabulary"),
    ],
)
def test_what_would_be_spelled_otherwise_is_one_sentence(change: Any, sentence: str, tmp_path: Path) -> None:
    writer = theirs.start(tmp_path / "v.gguf")
    theirs.add_byte_level(writer, "smollm")
    change(writer)
    theirs.finish(writer)
    with pytest.raises(ModelError, match=sentence) as raised:
        read(tmp_path / "v.gguf")
    assert "\n" not in str(raised.value) and str(raised.value).endswith(".")


@pytest.mark.parametrize(
    ("scores", "own", "sentence"),
    [
        (lambda scores: [0.0] * len(scores), False, "gives several tokens the same score"),
        (lambda scores: scores[:-1], False, "has no scores"),
        (lambda scores: scores, True, "inserts spaces after added tokens"),
    ],
)
def test_pieces_that_would_be_spelled_otherwise_are_one_sentence(
    scores: Any, own: bool, sentence: str, tmp_path: Path
) -> None:
    writer = theirs.start(tmp_path / "v.gguf")
    theirs.add_pieces(writer, "spm-bare" if own else "spm")
    held = writer.kv_data[0]
    values = list(held.pop("tokenizer.ggml.scores").value)
    writer.add_array("tokenizer.ggml.scores", scores(values))
    if own:
        held.pop("tokenizer.ggml.add_space_prefix")
        writer.add_add_space_prefix(True)
    theirs.finish(writer)
    with pytest.raises(ModelError, match=sentence):
        read(tmp_path / "v.gguf")
