"""Read the daemon's token from its file or from CODESPEC_SERVE_TOKEN, and check its strength."""

from __future__ import annotations

import os
from collections.abc import Mapping

from codespec.errors import ConfigError
from codespec.regular_file import NotUtf8, Unreadable, decode_text, read_regular
from codespec.user_folders import named_path

TOKEN_VARIABLE = "CODESPEC_SERVE_TOKEN"
LEAST_TOKEN = 16  # characters
MOST_BYTES = 4096  # maximum size of the token file


def read_token(file: str, environment: Mapping[str, str] | None = None, least: int = LEAST_TOKEN) -> str:
    """Return the token from its file, else from CODESPEC_SERVE_TOKEN, else "".

    Raises ConfigError if the file can't be read or the token is too easy to guess, that is shorter than `least`.
    """
    # Without blanks around it, which a header can't carry: no client could send the token.
    token, where = (os.environ if environment is None else environment).get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
    if file:
        where = file
        try:
            token = decode_text(read_regular(named_path(file), MOST_BYTES)).strip()
        except NotUtf8 as error:
            raise ConfigError(f"The token file {file} is not UTF-8 text ({error})", "save it as UTF-8") from error
        except (OSError, ValueError) as error:
            why = str(error) if isinstance(error, Unreadable) else type(error).__name__
            raise ConfigError(f"The token file {file} can't be read ({why})", "check it") from error
    if (token or file) and (len(token) < least or not token.isascii() or not token.isprintable()):
        raise ConfigError(f"The token in {where} is too easy to guess", f"use {least} or more ASCII characters")
    return token
