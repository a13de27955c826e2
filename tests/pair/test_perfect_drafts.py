"""The text a pair is measured on: bounded, in a fixed order. The perfect drafter's score, with planted faults too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from codespec import pair
from codespec.errors import ConfigError, TokenizerError
from codespec.pair import (
    PerfectDrafts,
    Sample,
    draft_perfectly,
    folder_sample,
    named_sample,
    tokenize_texts,
)
from codespec.text.tokenizer import TextTokenizer
from tests.pair.folders import TEXT
from tests.toy_tokenizers import toy_tokenizer

Pairs = Sequence[tuple[bytes, bytes]]


def survival(target: str, drafter: str, tokens: int = 8, text: str = TEXT) -> PerfectDrafts:
    mine, other = toy_tokenizer(target), toy_tokenizer(drafter)
    return draft_perfectly(mine, other, tokenize_texts(mine, other, [text]), tokens, most=300)


def share(target: str, drafter: str, tokens: int = 8) -> float:
    value = survival(target, drafter, tokens).survival
    assert value is not None
    return value


def test_a_shared_vocabulary_loses_nothing() -> None:
    found = survival("gpt2", "gpt2")
    assert found.rounds >= 250 and found.drafted == found.accepted == 8 * found.rounds


@pytest.mark.parametrize(
    ("target", "drafter"),
    [
        ("llama3", "gpt2"),
        ("gpt2", "llama2"),
        ("llama2", "gpt2"),
        ("unigram", "qwen"),
        ("neox", "bytes"),
        ("qwen", "unigram"),
    ],
)
def test_different_kinds_lose_a_little_at_a_drafts_end(target: str, drafter: str) -> None:
    found = survival(target, drafter)
    assert found.survival is not None and 0.8 <= found.survival < 1.0
    # A draft ends at the first drafter token past the size of eight average target tokens.
    assert 7.5 <= found.drafted / found.rounds <= 11


def test_a_longer_draft_shares_the_loss_at_its_end() -> None:
    short, middle, long = (share("unigram", "gpt2", tokens) for tokens in pair.LENGTHS)
    assert short < middle < long


def encode_alone(tokenizer: TextTokenizer, pairs: Pairs) -> list[list[int]]:
    return [tokenizer.encode(draft.decode("utf-8", "ignore")) for _, draft in pairs]


def with_a_space(tokenizer: TextTokenizer, pairs: Pairs) -> list[list[int]]:
    return [tokenizer.encode_inside(" " + draft.decode("utf-8", "ignore")) for _, draft in pairs]


def forgetting_the_first(tokenizer: TextTokenizer, pairs: Pairs) -> list[list[int]]:
    return [tokenizer.spell([draft[1:]])[0] for _, draft in pairs]


@pytest.mark.parametrize("fault", [encode_alone, with_a_space, forgetting_the_first])
def test_a_fault_in_retokenization_is_seen(fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a dummy prefix each fault puts something before the draft, and almost nothing is accepted."""
    assert share("llama2", "gpt2") > 0.8
    monkeypatch.setattr(pair, "retokenize_batch", fault)
    assert share("llama2", "gpt2") < 0.35


def test_a_wrong_cut_between_tokens_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte-by-byte spelling is the same text in other tokens."""

    def bytewise(tokenizer: TextTokenizer, pairs: Pairs) -> list[list[int]]:
        single = [[draft[n : n + 1] for n in range(len(draft))] for _, draft in pairs]
        return [[number for ids in tokenizer.spell(pieces) for number in ids] for pieces in single]

    monkeypatch.setattr(pair, "retokenize_batch", bytewise)
    assert share("llama3", "gpt2") < 0.2


def test_places_never_begin_inside_a_character() -> None:
    """A drafter waits there for the rest of the character, so there is nothing to measure."""
    gpt2 = toy_tokenizer("gpt2")
    texts = tokenize_texts(gpt2, toy_tokenizer("llama2"), ["x = '\U0001f600\U0001f469 é'\n" * 60])
    inside = sum(texts[0].data[end] & 0xC0 == 0x80 for end in texts[0].ends[:-1])
    assert inside > 100
    found = draft_perfectly(gpt2, toy_tokenizer("llama2"), texts, 4)
    assert 200 < found.rounds < len(texts[0].ids) - inside
    assert found.survival is not None and found.survival > 0.8


def test_too_little_text_measures_nothing() -> None:
    found = survival("gpt2", "llama2", 16, "x = 1\n")
    assert (found.rounds, found.survival) == (0, None)


def test_texts_that_a_vocabulary_cannot_spell_are_left_out() -> None:
    gpt2 = toy_tokenizer("gpt2")

    class NoEmoji:
        def encode(self, text: str) -> list[int]:
            if "\U0001f600" in text:
                raise TokenizerError("no token for it: leave it out")
            return gpt2.encode(text)

    spelled = tokenize_texts(gpt2, NoEmoji(), ["a = 1\n", "b = '\U0001f600'\n"])  # type: ignore[arg-type]
    assert [text.data for text in spelled] == [b"a = 1\n"]


def names(found: Sample) -> list[str]:
    return [name for name, _ in found.texts]


def test_hidden_and_installed_files_are_skipped(tmp_path: Path) -> None:
    kept = ("a.py", "pkg/b.rs", "pkg/sub/c.ts")
    other = ("notes.txt", ".hidden.py", ".git/x.py", "node_modules/x/i.js", "venv/x.py", "pkg/__pycache__/y.py")
    for name in (*kept, *other, "mine/lib/z.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "mine" / "pyvenv.cfg").touch()
    found = folder_sample(tmp_path, "files here")
    assert names(found) == list(kept) and found.source == "files here" and found.size == 18


def test_many_and_large_files_are_bounded(tmp_path: Path) -> None:
    for number in range(120):
        (tmp_path / f"m{number:03}.py").write_text("value = 'é'\n" * 3000)
    found = folder_sample(tmp_path, "files here")
    sizes = [len(text.encode()) for _, text in found.texts]
    assert found.size <= pair.MAX_BYTES and max(sizes) <= pair.MAX_OF_ONE
    assert len(sizes) == pair.MAX_FILES and all(text.endswith("\n") for _, text in found.texts)
    assert names(found)[:3] == ["m000.py", "m003.py", "m006.py"]  # evenly spaced over all files
    assert found == folder_sample(tmp_path, "files here")


def test_what_is_no_text_is_left_out_of_files_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"\xff\xfe")
    (tmp_path / "b.py").write_bytes(b"x\0y")
    (tmp_path / "c.py").write_bytes(b"x = 1\r\n")
    (tmp_path / "d.py").symlink_to(tmp_path / "gone.py")
    assert folder_sample(tmp_path, "files here").texts == (("c.py", "x = 1\r\n"),)


def test_a_line_longer_than_the_bound_is_cut_at_a_character(tmp_path: Path) -> None:
    (tmp_path / "min.js").write_text("é" * pair.MAX_OF_ONE)
    text = folder_sample(tmp_path, "files here").texts[0][1]
    assert set(text) == {"é"} and len(text.encode()) <= pair.MAX_OF_ONE


def test_named_files_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("é" * 50_000)
    found = named_sample([file])
    assert found.source == "named files" and found.size == 100_000


@pytest.mark.parametrize("data", [b"a\xff", b"a\0b"])
def test_a_named_file_that_is_no_text_is_one_sentence(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(data)
    with pytest.raises(ConfigError, match=r"a\.bin is not UTF-8 text \(byte 1\): name other files with --files\.$"):
        named_sample([tmp_path / "a.bin"])


def test_a_named_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.py", tmp_path):
        with pytest.raises(ConfigError, match=r"can't be read .*: check the path"):
            named_sample([path])
