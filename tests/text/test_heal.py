"""Token healing: which tokens are backed up, and which ids may follow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.text.align import HeldVocabulary, held_vocabulary, stable_boundary
from tests.toy_tokenizers import KINDS, toy_tokenizer

kinds = st.sampled_from(sorted(KINDS))
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
