"""A proof is valid for one challenge, one address and one key, and reveals nothing about the key."""

from __future__ import annotations

from typing import Any

import pytest

from codespec.client.proof import Keys, address_of, answer, is_proven, new_nonce, stretched

HERE, ELSEWHERE = ("127.0.0.1", 8765), ("192.0.2.1", 8765)
MAPPED = ("::ffff:127.0.0.1", 8765, 0, 0)
MINE = Keys(b"s" * 32, stretched("a-token-of-some-length"))
NONCE = new_nonce()


@pytest.mark.parametrize("keys", [MINE, Keys(MINE.secret), Keys(None, MINE.token)])
def test_either_key_proves_it_here(keys: Keys) -> None:
    assert is_proven(answer(keys, NONCE, "127.0.0.1:8765"), MINE, NONCE, HERE)
    assert is_proven(answer(MINE, NONCE, "127.0.0.1:8765"), keys, NONCE, HERE)


@pytest.mark.parametrize("peer", [HERE, MAPPED, ELSEWHERE, ("::1", 8765, 0, 0), ("fe80::1%lo", 8765, 0, 1)])
@pytest.mark.parametrize("keys", [Keys(MINE.secret), Keys(None, MINE.token)], ids=["secret", "token"])
def test_an_answer_holds_at_the_address_that_was_connected_to_and_nowhere_else(keys: Keys, peer: Any) -> None:
    """An impostor at one of this machine's own addresses, or on another machine, relays the challenge to the daemon."""
    assert is_proven(answer(MINE, NONCE, address_of(peer)), keys, NONCE, peer)
    for at in ("127.0.0.1:8766", "192.0.2.2:8765", "172.17.0.2:80", ""):
        message = answer(MINE, NONCE, at)
        assert not is_proven(message, keys, NONCE, peer)
        assert not is_proven({**message, "at": address_of(peer)}, keys, NONCE, peer)


@pytest.mark.parametrize("peer", [None, "", "a.sock"])
def test_a_connection_without_an_address_proves_nothing(peer: Any) -> None:
    assert not is_proven(answer(MINE, NONCE, ""), MINE, NONCE, peer)


@pytest.mark.parametrize("at", ["127.0.0.1:8766", "127.0.0.2:8765", "::1:8765", "192.0.2.1:8765", ""])
def test_an_answer_from_another_address_is_of_no_use_here(at: str) -> None:
    """A relay gets the answer for the address it connected to, whatever it claims."""
    message = answer(MINE, NONCE, at)
    assert not is_proven(message, MINE, NONCE, HERE)
    assert not is_proven({**message, "at": "127.0.0.1:8765"}, MINE, NONCE, HERE)


def test_an_answer_to_another_question_or_by_another_key_is_none() -> None:
    message = answer(MINE, NONCE, "127.0.0.1:8765")
    assert not is_proven(message, MINE, new_nonce(), HERE)
    others = Keys(b"t" * 32, stretched("another-token-of-some-length"))
    assert not is_proven(message, others, NONCE, HERE) and not is_proven(message, Keys(), NONCE, HERE)
    assert not is_proven(answer(Keys(), NONCE, "127.0.0.1:8765"), Keys(), NONCE, HERE), "nothing proves nothing"


@pytest.mark.parametrize("value", [None, 1, "", "\ud800", "é" * 64, [], {}])
def test_what_is_no_answer(value: Any) -> None:
    message = {"at": value, "by_secret": value, "by_token": value}
    assert not is_proven(message, MINE, NONCE, HERE) and not is_proven(message, MINE, NONCE, ELSEWHERE)


def test_keys_are_in_no_message() -> None:
    assert repr(MINE) == "Keys()" and stretched("") is None


def test_both_ends_spell_an_address_alike() -> None:
    assert address_of(("::1", 1, 0, 0)) == "::1:1" and address_of("a.sock") == address_of(None) == ""
    assert address_of(MAPPED) == address_of(HERE) and address_of(("fe80::1%lo", 1, 0, 1)) == "fe80::1:1"
