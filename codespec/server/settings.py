"""The daemon's own settings, resolved like the engine's: defaults < [serve] in a TOML file < CODESPEC_SERVE_* < flags.

Knows names, ranges and who can reach an address; opens no socket.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.config import read_settings
from codespec.errors import ConfigError
from codespec.token_file import TOKEN_VARIABLE

LEAST = {"port": 0, "queue": 0, "drain_seconds": 0, "audit_every": 0, "log_kb": 0}
MOST = {"port": 65535, "queue": 10_000, "drain_seconds": 3600, "audit_every": 1_000_000, "log_kb": 1_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Where the daemon listens, and for whom.

    host           an address of this machine; one that others can reach needs a token
    port           0: a free one, which the first line printed names
    socket         a Unix socket to listen on as well; auto: daemon-PORT.sock in the state folder, by which editors know
                   that the daemon is their user's; none (or "")
    token_file     a file with the token that every request must bring ("": none; CODESPEC_SERVE_TOKEN holds one too)
    queue          requests that may wait; more get 429
    drain_seconds  how long a stopping daemon lets open requests finish
    prefetch       continue each document's text, as if it were accepted, while there is nothing else to do
    audit_every    one finished completion in so many is decoded again without drafts, while there is nothing else to
                   do, and must come out the same (0: none is; exact mode only)
    access_log     a line for each request on stderr: method, route, status and time
    log_kb         kB of a file behind stdout or stderr before its older half is dropped (0: any size)
    """

    host: str = "127.0.0.1"
    port: int = 8765
    socket: str = "auto"
    token_file: str = ""
    queue: int = 64
    drain_seconds: int = 30
    prefetch: bool = True
    audit_every: int = 200
    access_log: bool = False
    log_kb: int = 0

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if not least <= getattr(self, name) <= MOST[name]:
                raise ConfigError(f"{name} = {getattr(self, name)} is out of range: choose {least} to {MOST[name]}.")
        if not self.host:
            raise ConfigError("host is empty: give an address of this machine, for example 127.0.0.1.")


def resolve_serve(
    flags: Mapping[str, Any],
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    notes: MutableSequence[str] | None = None,
) -> ServeConfig:
    """The settings of the daemon; `notes` name those of earlier versions, which have no effect. Raises ConfigError
    naming the first key or variable that can't be used."""
    return ServeConfig(**read_settings(ServeConfig, flags, file, environment, "serve", notes))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, token: str) -> None:
    """Raises ConfigError if other machines could reach a daemon that asks for no token."""
    if not token and not is_loopback(host):
        raise ConfigError(f"Other machines can reach {host}: give --token-file or {TOKEN_VARIABLE}, or bind 127.0.0.1.")
