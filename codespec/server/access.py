"""Who can reach a daemon at an address, and with which token. Knows addresses, files and variables; knows no requests.

Apart from `security`, so that a client on a machine without the daemon's packages reads the token as the daemon does.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path

from codespec.errors import ConfigError

TOKEN_VARIABLE = "CODESPEC_SERVE_TOKEN"
LEAST_TOKEN = 16  # characters


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(file: str, environment: Mapping[str, str] | None = None) -> str:
    """The token from its file or from CODESPEC_SERVE_TOKEN; "" for none. Raises ConfigError for one too easy."""
    token, where = (os.environ if environment is None else environment).get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
    if file:
        where = file
        try:
            token = Path(file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"The token file {file} can't be read ({type(error).__name__}): check it.") from error
    if (token or file) and (len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable()):
        raise ConfigError(f"The token in {where} is too easy to guess: use {LEAST_TOKEN} or more ASCII characters.")
    return token


def check_bind(host: str, token: str) -> None:
    """Raises ConfigError where strangers could reach a daemon that asks for no token."""
    if not token and not is_loopback(host):
        raise ConfigError(f"Other machines can reach {host}: give --token-file or {TOKEN_VARIABLE}, or bind 127.0.0.1.")
