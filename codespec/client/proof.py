"""Let a daemon prove that it belongs to the user before a client sends it anything.

The client sends a challenge of 32 random bytes. Only a daemon with the user's secret, or the token, can answer it.

A proof is bound to the address that the client connected to. An impostor that relays the challenge to the real daemon
gets a proof for that daemon's address, which fails at the impostor's own. As a consequence, a daemon at a translated
address (a container's published port, a tunnel to another port) can't prove itself. The daemon answers any client: the
secret is random, and each guess at a token costs one scrypt computation.

A client with a key of the keys file sends an id, derived from the key's hash, with the challenge. The daemon has only
the hash and answers under a secret derived from it. A reader of the keys file could therefore pose as the daemon to
that client, but could not use the key. The id identifies the client to the daemon and reveals nothing about the key.
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
KEY_PREFIX = "csk-"  # begins every key of a keys file, which distinguishes it from other tokens
_LABEL = b"codespec daemon's proof 1"


@dataclass(frozen=True, slots=True)
class Keys:
    secret: bytes | None = field(default=None, repr=False)
    token: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)  # of one client in the keys file


def own_keys(token: str) -> Keys:
    """Return the keys for the user's secret and a token ("": none). Raises ConfigError if the secret can't be used."""
    return Keys(read_secret(), stretched(token), from_key_hash(hash_of_key(token)) if is_key(token) else None)


def is_key(token: str) -> bool:
    return token.startswith(KEY_PREFIX)


def hash_of_key(key: str) -> str:
    """Return the SHA-256 of a key in hexadecimal digits, as the keys file holds it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def from_key_hash(key_hash: str) -> bytes:
    """Derive the HMAC key of a client's proof from its key's hash. No scrypt: a key is 256 random bits."""
    return hmac.digest(bytes.fromhex(key_hash), _LABEL + b" key", "sha256")


def key_id(key_hash: str) -> str:
    """Derive the id that a client sends with its challenge from its key's hash."""
    return hmac.digest(bytes.fromhex(key_hash), _LABEL + b" id", "sha256").hex()[:KEY_ID]


@lru_cache(maxsize=4)
def stretched(token: str) -> bytes | None:
    """Derive a key from a token with scrypt, which makes guessing slow. Return None without a token."""
    return hashlib.scrypt(token.encode(), salt=_LABEL, n=1 << 14, r=8, p=1, dklen=32) if token else None


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def challenge(nonce: bytes, token: str) -> dict[str, str]:
    """Return the body of a request for a proof, by a client with this token ("": none)."""
    return {"nonce": nonce.hex()} | ({"key": key_id(hash_of_key(token))} if is_key(token) else {})


def answer(keys: Keys, nonce: bytes, at: str) -> dict[str, str | None]:
    """Return the daemon's answer to a challenge received at its address `at`."""
    message = b"\0".join((_LABEL, at.encode("utf-8", "replace"), nonce))
    named = {"by_secret": keys.secret, "by_token": keys.token, "by_key": keys.key}
    proofs = {name: None if key is None else hmac.digest(key, message, "sha256").hex() for name, key in named.items()}
    return {"at": at, **proofs}


def is_proven(reply: Mapping[str, Any], keys: Keys, nonce: bytes, peer: object) -> bool:
    """Return whether an answer proves that `peer`, a socket's address, is the user's own daemon."""
    at = address_of(peer)
    expected = [(reply.get(name), proof) for name, proof in answer(keys, nonce, at).items() if name != "at"]
    return bool(at) and any(
        isinstance(sent, str)
        and proof is not None
        and hmac.compare_digest(sent.encode("utf-8", "replace"), proof.encode())
        for sent, proof in expected
    )


def address_of(name: object) -> str:
    """Format an IP address and port identically at both ends. Return "" for a Unix socket."""
    if not isinstance(name, tuple):
        return ""
    address = ipaddress.ip_address(name[0].partition("%")[0])  # the zone id differs between the two ends
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return f"{mapped or address}:{name[1]}"
