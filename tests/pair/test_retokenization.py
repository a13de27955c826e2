"""The perfect drafter: its score on pairs with a known answer, and a lower score with a planted fault."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from codespec.pair import retokenization
from codespec.pair.retokenization import PerfectDrafts, measure_perfect_drafts, tokenize_texts
from codespec.text.tokenizer import TextTokenizer
from tests.pair.folders import TEXT
from tests.toy_tokenizers import toy_tokenizer

Pairs = Sequence[tuple[bytes, bytes]]


def survival(target: str, drafter: str, tokens: int = 8, text: str = TEXT) -> PerfectDrafts:
    mine, other = toy_tokenizer(target), toy_tokenizer(drafter)
    return measure_perfect_drafts(mine, other, tokenize_texts(mine, other, [text]), tokens, positions=300)


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
    short, middle, long = (share("unigram", "gpt2", tokens) for tokens in retokenization.LENGTHS)
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
    monkeypatch.setattr(retokenization, "retokenize_batch", fault)
    assert share("llama2", "gpt2") < 0.35


def test_a_wrong_cut_between_tokens_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte-by-byte spelling is the same text in other tokens."""

    def bytewise(tokenizer: TextTokenizer, pairs: Pairs) -> list[list[int]]:
        single = [[draft[n : n + 1] for n in range(len(draft))] for _, draft in pairs]
        return [[number for ids in tokenizer.spell(pieces) for number in ids] for pieces in single]

    monkeypatch.setattr(retokenization, "retokenize_batch", bytewise)
    assert share("llama3", "gpt2") < 0.2


def test_places_never_begin_inside_a_character() -> None:
    """A drafter waits there for the rest of the character, so there is nothing to measure."""
    gpt2 = toy_tokenizer("gpt2")
    texts = tokenize_texts(gpt2, toy_tokenizer("llama2"), ["x = '\U0001f600\U0001f469 é'\n" * 60])
    inside = sum(texts[0].data[end] & 0xC0 == 0x80 for end in texts[0].ends[:-1])
    starts = [start for _, _, start in retokenization._positions(texts, 4, 10_000)]
    assert inside > 100 and len(starts) > 200
    assert not [start for start in starts if texts[0].data[start] & 0xC0 == 0x80]
    found = measure_perfect_drafts(gpt2, toy_tokenizer("llama2"), texts, 4)
    assert found.survival is not None and found.survival > 0.8


def test_too_little_text_measures_nothing() -> None:
    found = survival("gpt2", "llama2", 16, "x = 1\n")
    assert (found.rounds, found.survival) == (0, None)


def test_texts_that_a_vocabulary_cannot_spell_are_left_out() -> None:
    gpt2 = toy_tokenizer("gpt2")

    class NoEmoji:
        def encode(self, text: str) -> list[int]:
            if "\U0001f600" in text:
                raise retokenization.TokenizerError("no token for it: leave it out")
            return gpt2.encode(text)

    spelled = tokenize_texts(gpt2, NoEmoji(), ["a = 1\n", "b = '\U0001f600'\n"])  # type: ignore[arg-type]
    assert [text.data for text in spelled] == [b"a = 1\n"]
