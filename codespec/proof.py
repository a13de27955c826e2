"""How a daemon proves that it is the user's own before anything is sent to it: the client sends 32 random bytes, and
only a daemon that has the user's secret, or the token, can answer.

An answer holds for one address, the one that the client connected to: an impostor that relays the challenge to the real
daemon gets an answer for that daemon's address, which is of no use at its own. So a daemon behind a translated address
(a container's published port, a tunnel to another port) can't prove itself. The secret is random, and each guess at a
token costs an scrypt, so answers may be given to anybody. Knows keys and addresses; knows no HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from codespec.user_folders import read_secret

PATH = "/v1/codespec/proof"
NONCE_BYTES = 32
MOST_REPLY = 1024  # bytes
_LABEL = b"codespec daemon's proof 1"


@dataclass(frozen=True, slots=True)
class Keys:
    """What answers are keyed by; None for what there is not."""

    secret: bytes | None = field(default=None, repr=False)
    token: bytes | None = field(default=None, repr=False)


def own_keys(token: str) -> Keys:
    """Of this user, and of a token ("": none). Raises ConfigError where the secret can't be used."""
    return Keys(read_secret(), stretched(token))


@lru_cache(maxsize=4)
def stretched(token: str) -> bytes | None:
    """A key that takes long to make from a guess; None for no token."""
    return hashlib.scrypt(token.encode(), salt=_LABEL, n=1 << 14, r=8, p=1, dklen=32) if token else None


def new_nonce() -> bytes:
    """What a daemon is asked with, once."""
    return secrets.token_bytes(NONCE_BYTES)


def answer(keys: Keys, nonce: bytes, at: str) -> dict[str, str | None]:
    """What the daemon says to a question that came to one of its addresses."""
    return {"at": at, "by_secret": _proof(keys.secret, nonce, at), "by_token": _proof(keys.token, nonce, at)}


def is_proven(said: Mapping[str, Any], keys: Keys, nonce: bytes, peer: object) -> bool:
    """Whether an answer shows that the other end of a connection to `peer`, a socket's address, is the user's own."""
    at = address_of(peer)
    return bool(at) and any(_fits(said.get(name), key, nonce, at) for name, key in _named(keys))


def address_of(name: object) -> str:
    """An IP address and port as one text, spelled alike at both ends; "" for a Unix socket."""
    if not isinstance(name, tuple):
        return ""
    address = ipaddress.ip_address(name[0].partition("%")[0])  # each end has its own names for links
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return f"{mapped or address}:{name[1]}"


def _named(keys: Keys) -> tuple[tuple[str, bytes | None], ...]:
    return ("by_secret", keys.secret), ("by_token", keys.token)


def _fits(given: object, key: bytes | None, nonce: bytes, at: str) -> bool:
    expected = _proof(key, nonce, at)
    if expected is None or not isinstance(given, str):
        return False
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _proof(key: bytes | None, nonce: bytes, at: str) -> str | None:
    if key is None:
        return None
    return hmac.digest(key, b"\0".join((_LABEL, at.encode("utf-8", "replace"), nonce)), "sha256").hex()
