"""Who can reach a daemon at an address. Knows addresses; knows no requests.

Apart from `security`, so that a client on a machine without the daemon's packages judges an address as the daemon does.
"""

from __future__ import annotations

import ipaddress

from codespec.errors import ConfigError
from codespec.token_file import TOKEN_VARIABLE


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, token: str) -> None:
    """Raises ConfigError where strangers could reach a daemon that asks for no token."""
    if not token and not is_loopback(host):
        raise ConfigError(f"Other machines can reach {host}: give --token-file or {TOKEN_VARIABLE}, or bind 127.0.0.1.")
