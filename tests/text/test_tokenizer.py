"""Text survives bytes → ids → bytes in every supported tokenizer kind; others are rejected with the reason."""

from __future__ import annotations

import json
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from codespec.api.config import SHIPPED
from codespec.backends.gguf.tokenizer import FAMILIES
from codespec.errors import TokenizerError
from codespec.text.tokenizer import MAX_REMEMBERED, TextTokenizer, byte_level_alphabet
from codespec.text.tokenizer_json import KNOWN, try_out
from tests.text.strategies import code_text, loose_bytes
from tests.toy_tokenizers import KINDS, MARKERS, REFUSED, held_out_texts, toy_backend, toy_tokenizer

kinds = st.sampled_from(sorted(KINDS))


@given(kind=kinds, text=code_text)
def test_text_survives(kind: str, text: str) -> None:
    tokenizer = toy_tokenizer(kind)
    ids = tokenizer.encode(text)
    swallows_space = kind in ("metaspace-first", "unigram") and text.startswith(" ")
    assert tokenizer.decode_bytes(ids, at_start=not swallows_space) == text.encode()
    assert not tokenizer.special_ids.intersection(ids)


@given(kind=kinds, pieces=st.lists(loose_bytes, max_size=4))
def test_any_bytes_are_spelled(kind: str, pieces: list[bytes]) -> None:
    tokenizer = toy_tokenizer(kind)
    spelled = tokenizer.spell(pieces)
    assert [tokenizer.decode_bytes(ids) for ids in spelled] == pieces


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_equals_the_models_own_encoding(kind: str) -> None:
    tokenizer, backend = toy_tokenizer(kind), toy_backend(kind)
    for text in (*held_out_texts(), "x", "", " x", "  x", "\n\tx ", unicodedata.normalize("NFC", "Cafe\u0301 \uff26")):
        assert tokenizer.encode(text) == backend.encode(text, add_special_tokens=False).ids
        assert [*tokenizer.bos_ids, *tokenizer.encode(text)] == backend.encode(text).ids


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_markers_in_source_text_stay_text(kind: str) -> None:
    tokenizer = toy_tokenizer(kind)
    text = "a " + " ".join(MARKERS) + " b"
    ids = tokenizer.encode(text)
    assert tokenizer.decode_bytes(ids, at_start=True) == text.encode()
    assert not tokenizer.special_ids.intersection(ids)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_ready_prompt_has_its_markers_parsed(kind: str) -> None:
    tokenizer = toy_tokenizer(kind)
    prefix_id, middle_id = tokenizer.vocab["<|fim_prefix|>"], tokenizer.vocab["<|fim_middle|>"]
    ids = tokenizer.encode_with_specials("<|fim_prefix|>x = <|fim_middle|>")
    assert ids == [prefix_id, *tokenizer.encode_inside("x = "), middle_id]
    assert tokenizer.encode_with_specials("x<|fim_prefix|>") == [*tokenizer.encode("x"), prefix_id]


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_lossy_tokenizers_are_refused_with_the_reason(kind: str) -> None:
    reasons = {
        "wordpiece": "WordPiece",
        "nfkc": "normalizer NFKC changes text",
        "no-byte-fallback": r"loses '\\t'",
        "drops-spaces": "loses ' '",
    }
    with pytest.raises(TokenizerError, match=reasons[kind]):
        TextTokenizer.from_backend(toy_backend(kind))


def test_what_stands_before_a_text() -> None:
    gpt2, llama2 = toy_tokenizer("gpt2"), toy_tokenizer("llama2")
    assert llama2.dummy_prefix and not toy_tokenizer("metaspace-never").dummy_prefix
    assert llama2.bos_ids == (1,) and gpt2.bos_ids == ()


def test_markers_that_qwen_declares_as_text_are_control_and_runs_of_spaces_are_text() -> None:
    qwen, neox = toy_tokenizer("qwen"), toy_tokenizer("neox")
    assert {qwen.vocab[name] for name in MARKERS} == qwen.special_ids
    run = neox.vocab[" " * 8]
    assert run not in neox.special_ids and neox.token_bytes[run] == b" " * 8
    assert run in neox.encode("x" + " " * 8 + "y")


def test_a_learned_word_that_looks_like_a_marker_is_text() -> None:
    document = json.loads(toy_backend("bytes").to_str())
    vocab = document["model"]["vocab"]
    vocab |= {"<s": len(vocab), "<s>": len(vocab) + 1, "</s>": len(vocab) + 2}
    document["model"]["merges"] = [["<", "s"], ["<s", ">"]]
    document["pre_tokenizer"]["use_regex"] = False
    tokenizer = TextTokenizer(document, config={})
    assert tokenizer.encode("<s>") == [vocab["<s>"]] and vocab["<s>"] not in tokenizer.special_ids
    assert vocab["</s>"] in tokenizer.special_ids  # no merge produces it


def test_an_added_token_that_swallows_spaces_is_kept_from_it() -> None:
    backend = Tokenizer.from_str(toy_backend("gpt2").to_str())
    backend.add_tokens([AddedToken("@@", lstrip=True, rstrip=True)])
    assert len(backend.encode("a  @@  b", add_special_tokens=False).ids) == 3
    tokenizer = TextTokenizer.from_backend(backend)
    assert tokenizer.decode_bytes(tokenizer.encode("a  @@  b")) == b"a  @@  b"


def test_every_control_token_ends_a_completion_but_only_declared_ones_end_generate() -> None:
    tokenizer = toy_tokenizer("llama2")
    assert tokenizer.model_eos_ids == {tokenizer.vocab["<|endoftext|>"]}
    assert {tokenizer.vocab[name] for name in MARKERS} < tokenizer.eos_ids


def test_text_that_is_not_nfc_keeps_its_bytes() -> None:
    tokenizer, text = toy_tokenizer("qwen"), "e\u0301 \u212b"
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()
    assert "e\u0301" not in toy_backend("qwen").decode(toy_backend("qwen").encode(text).ids)


def test_a_character_without_token_is_named() -> None:
    backend = Tokenizer.from_str(toy_backend("bytes").to_str())
    document = json.loads(backend.to_str())
    spelling = next(chr(code) for code, byte in byte_level_alphabet().items() if byte == 0x07)
    document["model"]["vocab"].pop(spelling)
    tokenizer = TextTokenizer(document, config={})
    assert tokenizer.decode_bytes(tokenizer.spell([b"ab\x07c"])[0]) == b"ab"
    with pytest.raises(TokenizerError, match=r"'\\x07'"):
        tokenizer.encode("ab\x07c")


def test_a_lone_surrogate_is_one_sentence() -> None:
    with pytest.raises(TokenizerError, match="character 1"):
        toy_tokenizer("gpt2").encode("a\ud83d")


@pytest.mark.parametrize("kind", KINDS)
@given(pieces=st.lists(loose_bytes, min_size=9, max_size=12))
@settings(deadline=None, max_examples=20)
def test_a_few_short_pieces_are_spelled_as_among_many(kind: str, pieces: list[bytes]) -> None:
    """A few are encoded one by one, many in one call."""
    tokenizer = toy_tokenizer(kind)
    assert tokenizer.spell(pieces) == [ids for piece in pieces for ids in tokenizer.spell([piece])]


def test_equal_vocabularies_have_equal_fingerprints() -> None:
    again = TextTokenizer.from_backend(toy_backend("gpt2"))
    prints = [toy_tokenizer(kind).fingerprint for kind in sorted(KINDS)]
    assert again.fingerprint == toy_tokenizer("gpt2").fingerprint
    same = {"llama2", "metaspace-first", "metaspace-never"}  # one vocabulary, three ways to put spaces before it
    assert len(set(prints)) == len(KINDS) - len(same) + 1


class TestFolder:
    """Hugging Face folders on disk."""

    def test_eos_ids_come_from_the_generation_config_first(self, tmp_path: Path) -> None:
        write_folder(tmp_path, {"eos_token": "<|endoftext|>"})
        assert TextTokenizer.from_folder(tmp_path).model_eos_ids == {0}
        (tmp_path / "config.json").write_text('{"eos_token_id": 3}')
        assert TextTokenizer.from_folder(tmp_path).model_eos_ids == {3}
        (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
        tokenizer = TextTokenizer.from_folder(tmp_path)
        assert tokenizer.model_eos_ids == {5, 6} and {5, 6} < tokenizer.eos_ids

    def test_bos_is_what_the_config_says_over_the_post_processor(self, tmp_path: Path) -> None:
        write_folder(tmp_path, {"add_bos_token": True, "bos_token": {"content": "<|endoftext|>"}})
        assert TextTokenizer.from_folder(tmp_path).bos_ids == (0,)
        write_folder(tmp_path, {"add_bos_token": False, "bos_token": "<|endoftext|>"})
        assert TextTokenizer.from_folder(tmp_path).bos_ids == ()

    def test_truncation_and_padding_in_the_file_do_not_apply(self, tmp_path: Path) -> None:
        backend = Tokenizer.from_str(toy_backend("gpt2").to_str())
        backend.enable_truncation(4)
        backend.enable_padding(length=64)
        backend.save(str(tmp_path / "tokenizer.json"))
        text = "one two three four five six seven"
        assert TextTokenizer.from_folder(tmp_path).encode(text) == toy_tokenizer("gpt2").encode(text)

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "BPE", "merges": [["a"]]}}', "\x00\xff"])
    def test_broken_files_are_one_sentence(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="latin-1")
        with pytest.raises(TokenizerError, match="download the model again"):
            TextTokenizer.from_folder(tmp_path)

    def test_a_missing_file_is_one_sentence(self, tmp_path: Path) -> None:
        with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
            TextTokenizer.from_folder(tmp_path)


def test_a_large_vocabulary_is_tabled_quickly() -> None:
    alphabet = sorted(map(chr, byte_level_alphabet()))
    names = [first + second + third for first in alphabet for second in alphabet for third in alphabet[:2]]
    backend = Tokenizer(models.BPE(vocab={name: place for place, name in enumerate(alphabet + names)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_tokens([AddedToken("<|fim_prefix|>", special=False)])
    written = backend.to_str()
    document = json.loads(written)
    begun = time.process_time()
    Tokenizer.from_str(written)
    read = time.process_time()
    tokenizer = TextTokenizer(document, config={})
    assert tokenizer.vocab_size > 130_000
    assert time.process_time() - read < 30 * (read - begun), "of what tokenizers itself takes to read it"


def write_folder(folder: Path, config: dict[str, object]) -> None:
    toy_backend("gpt2").save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_is_the_librarys_with_tokens_added_beyond_it(kind: str) -> None:
    backend = Tokenizer.from_str(toy_backend(kind).to_str())
    backend.add_tokens(["addedword", AddedToken("<|added_marker|>", special=True)])
    tokenizer = TextTokenizer.from_backend(backend)
    assert tokenizer.vocab == backend.get_vocab(with_added_tokens=True)
    assert tokenizer.vocab["<|added_marker|>"] in tokenizer.special_ids


def test_merges_may_be_pairs_or_older_texts() -> None:
    document = json.loads(toy_backend("gpt2").to_str())
    pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in document["model"]["merges"]]
    text, ids = held_out_texts()[0], []
    for merges in (pairs, [tuple(pair) for pair in pairs], [" ".join(pair) for pair in pairs]):
        changed = {**document, "model": {**document["model"], "merges": merges}}
        ids.append(TextTokenizer(changed, config={}).encode(text))
    assert ids[0] == ids[1] == ids[2] == toy_tokenizer("gpt2").encode(text)


def test_long_texts_are_remembered_and_given_out_as_copies() -> None:
    tokenizer = TextTokenizer.from_backend(toy_backend("gpt2"))
    text = "def f(x):\n    return x + 1\n" * 40
    first = tokenizer.encode_inside(text)
    tokenizer._backend = None  # type: ignore[assignment]  # encoding fails from here on
    second = tokenizer.encode_inside(text)
    assert second == first
    second.append(0)
    assert tokenizer.encode_inside(text) == first


def test_only_the_last_long_texts_are_remembered() -> None:
    tokenizer = TextTokenizer.from_backend(toy_backend("gpt2"))
    for number in range(MAX_REMEMBERED + 5):
        assert tokenizer.decode_bytes(tokenizer.encode_inside(f"{number} " * 500)) == (f"{number} " * 500).encode()
    assert tokenizer._encode_long.cache_info().currsize == MAX_REMEMBERED


def test_a_remembered_text_that_begins_has_its_dummy_prefix() -> None:
    tokenizer = TextTokenizer.from_backend(toy_backend("llama2"))
    text = "def f(x):\n    return x + 1\n" * 40
    for _ in range(2):
        assert tokenizer.encode_inside(text, begins=True) == tokenizer.encode(text) != tokenizer.encode_inside(text)


def split(*patterns: str) -> dict[str, Any]:
    parts = [{"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False} for one in patterns]
    return {"type": "Sequence", "pretokenizers": parts}


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(?:x|xx|x?)+y", r"(\w+\s?)+;", r"(z*)*\z"])
def test_what_does_not_end_is_refused(pattern: str) -> None:
    with pytest.raises(TokenizerError, match=r"the tokenizer.s regular expression .*: choose another model"):
        try_out(split(pattern))


def test_what_is_no_expression_is_refused() -> None:
    with pytest.raises(TokenizerError, match="regular expression"):
        try_out(split("(("))


def test_real_ones_pass() -> None:
    """All expressions that GGUF files are converted to, and those that are not tried elsewhere."""
    try_out(split(*KNOWN, *(one for family in FAMILIES for one in family.splits)))
    try_out(None)
    try_out({"type": "ByteLevel"})


def test_the_starter_pair_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_: pytest.fail("it is tried at each start"))
    files = list(SHIPPED.glob("*/tokenizer.json"))
    assert files, "the pair has moved"
    for file in files:
        try_out(json.loads(file.read_text(encoding="utf-8"))["pre_tokenizer"])
