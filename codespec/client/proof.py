"""A daemon's proof that it belongs to the user, which a client requires before it sends any text.

The client sends a challenge of 32 random bytes. Only a daemon with the user's secret, or with the token, can answer the
challenge. The daemon answers any client, because the secret is random and each guess at a token costs a scrypt hash.

A proof is bound to the address that the client connected to. An impostor that relays the challenge to the real daemon
gets a proof for the daemon's address, which the client rejects. Therefore, a daemon can't prove its identity through a
translated address, such as a container's published port or a tunnel to another port.

A client with a key from the keys file also sends an id that is derived from the key's hash and does not reveal the key.
The daemon stores only the key's hash, and answers with an HMAC under a secret derived from the hash. Anyone who can
read the keys file could pose as the daemon to a client with such a key, but could not use the key.
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
MAX_REPLY = 1024  # bytes
KEY_ID = 32  # hexadecimal digits
KEY_PREFIX = "csk-"  # distinguishes a key of the keys file from other tokens
_LABEL = b"codespec daemon's proof 1"


@dataclass(frozen=True, slots=True)
class Keys:
    secret: bytes | None = field(default=None, repr=False)
    token: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)  # of one client in the keys file


def own_keys(token: str) -> Keys:
    """Return the HMAC keys of the user's secret and a token ("": none). Raises ConfigError for an unreadable secret."""
    return Keys(read_secret(), stretched(token), from_key_hash(hash_of_key(token)) if is_key(token) else None)


def is_key(token: str) -> bool:
    return token.startswith(KEY_PREFIX)


def hash_of_key(key: str) -> str:
    """Return the SHA-256 of a key in hexadecimal digits, the form in which the keys file stores a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def from_key_hash(key_hash: str) -> bytes:
    """Derive an HMAC key from the hash of a client's key. Scrypt is not needed, because a key is 256 random bits."""
    return hmac.digest(bytes.fromhex(key_hash), _LABEL + b" key", "sha256")


def key_id(key_hash: str) -> str:
    """Return the id that a client sends with a challenge, derived from the hash of the client's key."""
    return hmac.digest(bytes.fromhex(key_hash), _LABEL + b" id", "sha256").hex()[:KEY_ID]


@lru_cache(maxsize=4)
def stretched(token: str) -> bytes | None:
    """Derive an HMAC key from a token with scrypt, which slows down guessing. Return None for an empty token."""
    return hashlib.scrypt(token.encode(), salt=_LABEL, n=1 << 14, r=8, p=1, dklen=32) if token else None


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def challenge(nonce: bytes, token: str) -> dict[str, str]:
    """Build the body of a request for a proof, sent by a client with this token ("": none)."""
    return {"nonce": nonce.hex()} | ({"key": key_id(hash_of_key(token))} if is_key(token) else {})


def answer(keys: Keys, nonce: bytes, at: str) -> dict[str, str | None]:
    """Compute the daemon's answer to a challenge that it received at its address `at`."""
    message = b"\0".join((_LABEL, at.encode("utf-8", "replace"), nonce))
    named = {"by_secret": keys.secret, "by_token": keys.token, "by_key": keys.key}
    proofs = {name: None if key is None else hmac.digest(key, message, "sha256").hex() for name, key in named.items()}
    return {"at": at, **proofs}


def is_proven(reply: Mapping[str, Any], keys: Keys, nonce: bytes, peer: object) -> bool:
    """Return whether a reply proves that the peer, given by its socket address, is the user's own daemon."""
    at = address_of(peer)
    expected = [(reply.get(name), proof) for name, proof in answer(keys, nonce, at).items() if name != "at"]
    return bool(at) and any(
        isinstance(sent, str)
        and proof is not None
        and hmac.compare_digest(sent.encode("utf-8", "replace"), proof.encode())
        for sent, proof in expected
    )


def address_of(name: object) -> str:
    """Format a socket address as "IP:port", identically on client and daemon. Return "" for a Unix socket."""
    if not isinstance(name, tuple):
        return ""
    address = ipaddress.ip_address(name[0].partition("%")[0])  # the zone id differs between the two ends
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return f"{mapped or address}:{name[1]}"
