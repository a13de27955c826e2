"""Locate the user's folders, read the secret and the daemon's token, and check the daemon's socket.

A daemon proves with the secret or the socket that it belongs to the user: only this user can read the secret, and only
this user can create the socket. On Windows, where permissions are not mode bits, owners and modes are not checked.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from codespec.errors import ConfigError
from codespec.files import NotUtf8, Unreadable, decode_text, read_regular

NAME = "codespec"
SECRET_BYTES = 32
_ON_LINUX = {"state": "~/.local/state", "cache": "~/.cache", "data": "~/.local/share", "config": "~/.config"}
_OTHERS_WRITE, _OTHERS = stat.S_IWGRP | stat.S_IWOTH, stat.S_IRWXG | stat.S_IRWXO


def at_home(name: str) -> str:
    """Expand a leading ~ in a path from a file or a flag such as `--config=~/x`, where shells do not expand ~.

    Raises ConfigError if the home folder is unknown or the path contains a NUL character.
    """
    if "\0" in name:
        raise ConfigError(f"{name[:80]!r} is not a valid path", "remove the NUL character")
    opened = os.path.expanduser(name)
    if opened.startswith("~"):
        raise ConfigError(f"{name[:80]} begins with an unknown home folder", "give the absolute path")
    return opened


def named_path(name: str) -> Path:
    """Return the path that a user typed, with a leading `~` expanded. Raises ConfigError for an invalid path."""
    return Path(at_home(name))


def state_folder() -> Path:
    """Return the folder for learned state, daemon logs and the secret (on Linux, $XDG_STATE_HOME/codespec)."""
    return _folder("state")


def cache_folder() -> Path:
    """Return the folder for reproducible data and measurements (on Linux, $XDG_CACHE_HOME/codespec)."""
    return _folder("cache")


def data_folder() -> Path:
    """Return the folder for downloaded models (on Linux, $XDG_DATA_HOME/codespec)."""
    return _folder("data")


def config_folder() -> Path:
    """Return the folder of the user's configuration file (on Linux, $XDG_CONFIG_HOME/codespec)."""
    return _folder("config")


def _folder(kind: str) -> Path:
    named = os.environ.get(f"XDG_{kind.upper()}_HOME", "")
    if named and kind in ("state", "cache"):
        return Path(named) / NAME
    if sys.platform == "linux":  # where platformdirs need not be installed
        return Path(named if os.path.isabs(named) else os.path.expanduser(_ON_LINUX[kind])) / NAME
    import platformdirs

    return Path(getattr(platformdirs, f"user_{kind}_path")(NAME))


def make_state_folder() -> Path:
    """Return the state folder, creating a missing folder with mode 0700. Raises OSError."""
    folder = state_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def own_folder() -> Path:
    """Return the state folder, creating it if necessary. Raises ConfigError if other users can write to the folder."""
    try:
        folder = make_state_folder()
        check_folder()
    except OSError as error:
        folder, fix = state_folder(), "free disk space, or set XDG_STATE_HOME to another folder"
        raise ConfigError(f"The folder {folder} can't be created ({error.strerror})", fix) from error
    return folder


def check_folder() -> None:
    """Raise ConfigError if other users can change the state folder, and OSError if the folder does not exist."""
    folder = state_folder()
    status = folder.stat()
    if not _is_ours(status):
        raise ConfigError(f"{folder} belongs to another user", "set XDG_STATE_HOME to a folder of your own")
    if _allows(status, _OTHERS_WRITE):
        raise ConfigError(f"Other users can write to {folder}", f"run `chmod 700 {folder}`")


def read_secret() -> bytes:
    """Return the user's secret, creating it on first use. Raises ConfigError if others could have read the secret."""
    file = own_folder() / "secret"
    try:
        if not os.path.lexists(file):
            _make_secret(file)
        status = file.lstat()  # rejects symbolic links, whose mode allows everyone
        if not _is_ours(status) or _allows(status, _OTHERS):
            raise ConfigError(f"Other users could have read the secret in {file}", "delete it and restart the daemon")
        secret = read_regular(file, SECRET_BYTES)
        if len(secret) != SECRET_BYTES:
            raise Unreadable(f"shorter than {SECRET_BYTES} bytes")
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"The secret in {file} can't be used ({why})", "delete it and restart the daemon") from error
    return secret


def _make_secret(file: Path) -> None:
    """Create the secret atomically, unless another process has created the file in the meantime."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".part")  # mkstemp uses mode 0600
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(secrets.token_bytes(SECRET_BYTES))
        with suppress(FileExistsError):
            os.link(name, file)
    finally:
        Path(name).unlink(missing_ok=True)


def socket_of(port: int) -> Path:
    """Return the path of the Unix socket of the daemon that listens on this port."""
    return state_folder() / f"daemon-{port}.sock"


def is_own_socket(path: Path) -> bool:
    """Return whether the path is a socket that this user owns, in a folder that no other user can change."""
    try:
        check_folder()
        status = path.lstat()
    except (OSError, ConfigError):
        return False
    return stat.S_ISSOCK(status.st_mode) and _is_ours(status)


def _is_ours(status: os.stat_result) -> bool:
    return sys.platform == "win32" or status.st_uid == os.geteuid()


def _allows(status: os.stat_result, bits: int) -> bool:
    return sys.platform != "win32" and bool(status.st_mode & bits)


TOKEN_VARIABLE = "CODESPEC_SERVE_TOKEN"
MIN_TOKEN = 16  # characters
MAX_TOKEN_BYTES = 4096  # size of the token file


def read_token(file: str, environment: Mapping[str, str] | None = None, least: int = MIN_TOKEN) -> str:
    """Return the token from the file if `file` is not "", else from CODESPEC_SERVE_TOKEN ("": no token).

    Raises ConfigError if the file can't be read, or if the token is shorter than `least` or not printable ASCII.
    """
    # Blanks around the token are removed, because no HTTP header can carry them.
    token, where = (os.environ if environment is None else environment).get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
    if file:
        where = file
        try:
            token = decode_text(read_regular(named_path(file), MAX_TOKEN_BYTES)).strip()
        except NotUtf8 as error:
            raise ConfigError(f"The token file {file} is not UTF-8 text ({error})", "save it as UTF-8") from error
        except (OSError, ValueError) as error:
            why = str(error) if isinstance(error, Unreadable) else type(error).__name__
            raise ConfigError(f"The token file {file} can't be read ({why})", "check its path and mode") from error
    if (token or file) and (len(token) < least or not token.isascii() or not token.isprintable()):
        fix = f"use {least} or more printable ASCII characters"
        raise ConfigError(f"The token in {where} is too short or not printable ASCII", fix)
    return token
