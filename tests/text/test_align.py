"""Retokenization, resynchronization and token healing keep every byte, for any tokenizer and any cut of the text."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.text.align import (
    HeldVocabulary,
    byte_ends,
    complete_utf8_length,
    held_vocabulary,
    resync,
    retokenize_batch,
    stable_boundary,
    tail_window,
)
from codespec.text.tokenizer import TextTokenizer
from tests.text.strategies import code_text, loose_bytes
from tests.toy_tokenizers import KINDS, held_out_texts, toy_tokenizer

kinds = st.sampled_from(sorted(KINDS))


def retokenized(tokenizer: TextTokenizer, window: bytes, draft: bytes) -> list[int]:
    return retokenize_batch(tokenizer, [(window, draft)])[0]


@given(kind=kinds, text=code_text, data=st.data())
def test_ids_spell_the_draft_up_to_an_incomplete_character(kind: str, text: str, data: st.DataObject) -> None:
    tokenizer = toy_tokenizer(kind)
    whole = text.encode()
    end = data.draw(st.integers(0, len(whole)))
    cut = data.draw(st.integers(0, end))  # both may fall inside a character
    window, draft = whole[:cut], whole[cut:end]
    ids = retokenized(tokenizer, window, draft)
    assert tokenizer.decode_bytes(ids) == draft[: max(0, complete_utf8_length(whole[:end]) - cut)]
    assert not tokenizer.special_ids.intersection(ids)


@given(kind=kinds, pairs=st.lists(st.tuples(loose_bytes, loose_bytes), max_size=4))
def test_a_batch_equals_one_by_one_for_any_bytes(kind: str, pairs: list[tuple[bytes, bytes]]) -> None:
    tokenizer = toy_tokenizer(kind)
    together = retokenize_batch(tokenizer, pairs)
    assert together == [retokenized(tokenizer, window, draft) for window, draft in pairs]
    for ids, (_, draft) in zip(together, pairs, strict=True):
        spelled = tokenizer.decode_bytes(ids)
        assert draft.startswith(spelled) and len(draft) - len(spelled) <= 3


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_perfect_drafter_keeps_the_targets_own_tokens(kind: str) -> None:
    """Drafts of the true text are encoded with the target's own ids."""
    tokenizer = toy_tokenizer(kind)
    kept, drafted = 0, 0
    for window, draft, canonical in true_continuations(tokenizer, tokens=8, count=150):
        ids = retokenized(tokenizer, window, draft)
        drafted += len(canonical)
        kept += next((n for n, (a, b) in enumerate(zip(ids, canonical, strict=False)) if a != b), len(ids))
    assert kept / drafted >= 0.97


def test_a_dummy_prefix_does_not_spoil_the_draft() -> None:
    """Encoding the draft as a separate text would put a space before it, and nothing would be accepted."""
    tokenizer = toy_tokenizer("llama2")
    assert tokenizer.decode_bytes(tokenizer.encode("name")) == b" name"
    assert tokenizer.decode_bytes(retokenized(tokenizer, b"self.", b"name")) == b"name"
    assert tokenizer.decode_bytes(retokenized(tokenizer, b"", b"name")) == b"name"


def test_without_a_boundary_the_draft_is_spelled_alone() -> None:
    tokenizer = toy_tokenizer("gpt2")
    assert len(tokenizer.spell([b" return"])[0]) == 1  # no boundary inside
    assert retokenized(tokenizer, b"x ret", b"urn") == tokenizer.spell([b"urn"])[0]


def test_the_window_gives_the_draft_the_splits_of_the_running_text() -> None:
    """After a bracket and a quote, Llama 3's split isolates the dot; at a text's start it joins the word."""
    tokenizer = toy_tokenizer("llama3")
    ids = retokenized(tokenizer, b'    x = ("[{0}]"', b".format(y)")
    assert tokenizer.token_bytes[ids[0]] == b"."
    assert tokenizer.token_bytes[tokenizer.spell([b".format(y)"])[0][0]] == b".format"


def test_an_emoji_is_finished_byte_by_byte() -> None:
    emoji = "\U0001f600".encode()
    for kind in sorted(KINDS):
        tokenizer = toy_tokenizer(kind)
        assert tokenizer.decode_bytes(retokenized(tokenizer, b"x" + emoji[:2], emoji[2:] + b" y")) == emoji[2:] + b" y"
        assert retokenized(tokenizer, b"x" + emoji[:1], emoji[1:3]) == []
        assert tokenizer.decode_bytes(retokenized(tokenizer, b"x", b"y" + emoji[:3])) == b"y"


class TestTailWindow:
    def test_begins_behind_a_line_break_or_before_a_space(self) -> None:
        assert tail_window(b"a" * 90 + b"\n" + b"b" * 70, 64) == b"b" * 70
        assert tail_window(b"a" * 90 + b" " + b"b" * 70, 64) == b" " + b"b" * 70
        assert tail_window(b"short") == b"short"

    @settings(max_examples=100, deadline=None)
    @given(text=code_text, size=st.integers(1, 40))
    def test_is_a_tail_of_whole_characters(self, text: str, size: int) -> None:
        data = text.encode()
        window = tail_window(bytearray(data), size)
        assert data.endswith(window) and window.decode() is not None
        assert min(size, len(data)) <= len(window) <= 2 * size + 3


@given(kind=kinds, before=code_text, guess=loose_bytes, truth=loose_bytes, data=st.data())
def test_resync_spells_the_true_text(kind: str, before: str, guess: bytes, truth: bytes, data: st.DataObject) -> None:
    tokenizer = toy_tokenizer(kind)
    common = before.encode()
    ids = [*tokenizer.bos_ids, *tokenizer.spell([common + guess])[0]]
    known = data.draw(st.integers(0, len(common)))
    text = common + truth
    step = resync(tokenizer, ids, byte_ends(tokenizer, ids), text, known=known)
    assert tokenizer.decode_bytes([*ids[: step.kept], *step.new_ids]) == text
    assert step.end == len(text) and step.kept >= len(tokenizer.bos_ids)


@pytest.mark.parametrize("kind", ["llama2", "metaspace-first", "unigram"])
def test_resync_counts_a_dummy_prefix_before_the_text(kind: str) -> None:
    tokenizer = toy_tokenizer(kind)
    text = b"import os\nx = "
    ids = [*tokenizer.bos_ids, *tokenizer.encode(text.decode())]
    ends = byte_ends(tokenizer, ids, length=len(text))
    assert ends[-1] == len(text)
    step = resync(tokenizer, ids, ends, text + b"os.path")
    together = [*ids[: step.kept], *step.new_ids]
    assert tokenizer.decode_bytes(together, at_start=True) == text + b"os.path"
    assert together == [*tokenizer.bos_ids, *tokenizer.encode((text + b"os.path").decode())]


def test_resync_keeps_what_agrees_and_rolls_back_the_rest() -> None:
    tokenizer = toy_tokenizer("gpt2")
    text = b"def f(self):\n    return self.value\n"
    ids = tokenizer.spell([text])[0]
    ends = byte_ends(tokenizer, ids)
    assert resync(tokenizer, ids, ends, text) == resync(tokenizer, ids, ends, text, known=len(text))
    shorter = resync(tokenizer, ids, ends, text[: ends[5]])
    assert (shorter.kept, shorter.new_ids) == (6, [])


def test_resync_spells_the_joint_as_the_tokenizer_would() -> None:
    """The target commits half a word, then the other half; the drafter reads one word."""
    tokenizer = toy_tokenizer("gpt2")
    ids = tokenizer.spell([b"    retu"])[0]
    step = resync(tokenizer, ids, byte_ends(tokenizer, ids), b"    return x")
    assert [*ids[: step.kept], *step.new_ids] == tokenizer.spell([b"    return x"])[0]


def test_resync_never_spells_across_a_control_token() -> None:
    tokenizer = toy_tokenizer("gpt2")
    middle = tokenizer.vocab["<|fim_middle|>"]
    ids = [*tokenizer.spell([b" re"])[0], middle, *tokenizer.spell([b"tu"])[0]]
    step = resync(tokenizer, ids, byte_ends(tokenizer, ids), b" return x")
    assert ids[: step.kept].count(middle) == 1
    assert tokenizer.decode_bytes([*ids[: step.kept], *step.new_ids]) == b" return x"


def test_resync_looks_only_at_what_changed() -> None:
    tokenizer = toy_tokenizer("gpt2")
    text = held_out_texts()[0].encode()
    ids = tokenizer.spell([text])[0]
    ends = byte_ends(tokenizer, ids)
    spoiled = b"#" * 100 + text[100:]  # differences before `known` are not checked
    step = resync(tokenizer, ids, ends, spoiled + b"x = 1\n", known=len(text) - 20)
    assert step.kept > len(ids) - 12 and len(step.new_ids) < 20


@given(text=code_text, cut=st.integers(0, 60))
def test_complete_utf8_length(text: str, cut: int) -> None:
    data = text.encode()[:cut]
    end = complete_utf8_length(data)
    assert data[:end].decode() == text.encode()[:end].decode() and len(data) - end <= 3
    assert end == len(data) or not is_utf8(data)


def test_bytes_that_never_become_a_character_are_complete() -> None:
    assert complete_utf8_length(b"a\xff") == 2
    assert complete_utf8_length(b"a\x80\x80") == 3
    assert complete_utf8_length(b"a\xf0\x9f\x98") == 1


def true_continuations(tokenizer: TextTokenizer, *, tokens: int, count: int) -> list[tuple[bytes, bytes, list[int]]]:
    """Yield (window, draft, the target's own ids for the draft) from held-out source, cut at token boundaries."""
    text = held_out_texts()[1]
    ids = tokenizer.encode(text)[: 20 * count]
    data = tokenizer.decode_bytes(ids, at_start=True)
    dummy = len(tokenizer.decode_bytes(ids)) - len(data)
    ends = [end - dummy for end in accumulate(len(tokenizer.token_bytes[number]) for number in ids)]
    places = range(tokens, len(ids) - tokens, max(1, len(ids) // count))
    return [
        (tail_window(data[: ends[p]]), data[ends[p] : ends[p + tokens]], ids[p + 1 : p + 1 + tokens]) for p in places
    ]


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


beginnings = st.sampled_from([b"se", b" def", b"\n", b"\xf0\x9f", b"\xff", b"    "])


def test_half_a_word_is_given_back_and_the_word_is_allowed() -> None:
    tokenizer = toy_tokenizer("gpt2")
    vocabulary = HeldVocabulary(tokenizer)
    ids = tokenizer.spell([b"\n    retu"])[0]
    held = stable_boundary(vocabulary, ids)
    assert held.data == b" retu" and held.count == len(tokenizer.spell([b" retu"])[0]) > 1
    allowed = vocabulary.allowed_ids(held.data)
    assert tokenizer.spell([b" return"])[0][0] in allowed
    assert {tokenizer.token_bytes[number] for number in allowed} >= {b" ", b" re", b" return"}
    assert b"ret" not in {tokenizer.token_bytes[number] for number in allowed}


@given(kind=kinds, held=st.one_of(beginnings, st.binary(min_size=1, max_size=4)))
def test_allowed_ids_are_exactly_the_consistent_ones(kind: str, held: bytes) -> None:
    tokenizer = toy_tokenizer(kind)
    naive = [
        number
        for number, data in enumerate(tokenizer.token_bytes)
        if data and (data.startswith(held) or held.startswith(data))
    ]
    vocabulary = held_vocabulary(tokenizer)
    assert vocabulary.allowed_ids(held) == naive == vocabulary.allowed_ids(held)
    longer = any(data.startswith(held) and data != held for data in tokenizer.token_bytes)
    assert vocabulary.has_longer(held) == longer


@given(kind=kinds, text=st.text(alphabet="self.nam =(\n", max_size=20))
def test_the_boundary_is_the_earliest_one_a_token_reaches_across(kind: str, text: str) -> None:
    tokenizer = toy_tokenizer(kind)
    ids = tokenizer.encode(text)
    held = stable_boundary(held_vocabulary(tokenizer), ids)
    assert held.data == tokenizer.decode_bytes(ids[len(ids) - held.count :])
    for count in range(1, min(4, len(ids)) + 1):
        tail = tokenizer.decode_bytes(ids[-count:])
        reached = any(data.startswith(tail) and data != tail for data in tokenizer.token_bytes)
        assert reached <= (count <= held.count)
        assert reached or count != held.count


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_control_tokens_are_never_given_back(kind: str) -> None:
    tokenizer = toy_tokenizer(kind)
    vocabulary = held_vocabulary(tokenizer)
    marker = tokenizer.vocab["<|fim_prefix|>"]
    assert stable_boundary(vocabulary, [*tokenizer.spell([b"retu"])[0], marker]).count == 0
    tail = tokenizer.spell([b"r"])[0]
    assert stable_boundary(vocabulary, [marker, *tail]).count <= len(tail)
    assert stable_boundary(vocabulary, []).data == b""


def test_held_bytes_can_always_be_spelled_to_their_end() -> None:
    """After any allowed token, either the held bytes are consumed or another token is allowed."""
    for kind in sorted(KINDS):
        tokenizer = toy_tokenizer(kind)
        vocabulary = held_vocabulary(tokenizer)
        left = {stable_boundary(vocabulary, tokenizer.encode("    self.na")).data}
        while left:
            held = left.pop()
            allowed = [tokenizer.token_bytes[number] for number in vocabulary.allowed_ids(held)]
            assert allowed
            left |= {held[len(data) :] for data in allowed if len(data) < len(held)}


def test_one_sorted_vocabulary_a_tokenizer() -> None:
    assert held_vocabulary(toy_tokenizer("gpt2")) is held_vocabulary(toy_tokenizer("gpt2"))
