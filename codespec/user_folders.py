"""The user's folders, by each system's conventions, and the two things in the state folder by which a daemon is known
to be the user's own: a secret that only this user can read, and the socket that a daemon of this user's made.

Owners and modes are not checked on Windows, where a folder's rights are no mode.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from codespec.errors import ConfigError
from codespec.regular_file import Unreadable, read_regular

NAME = "codespec"
SECRET_BYTES = 32
_ON_LINUX = {"state": "~/.local/state", "cache": "~/.cache", "data": "~/.local/share", "config": "~/.config"}
_OTHERS_WRITE, _OTHERS = stat.S_IWGRP | stat.S_IWOTH, stat.S_IRWXG | stat.S_IRWXO


def state_folder() -> Path:
    """Where what was learned, daemons' logs and the secret are kept; on Linux $XDG_STATE_HOME/codespec."""
    if named := _named_by("XDG_STATE_HOME"):
        return named
    return _usual("state")


def cache_folder() -> Path:
    """Where what can be made or measured again is kept; on Linux $XDG_CACHE_HOME/codespec."""
    if named := _named_by("XDG_CACHE_HOME"):
        return named
    return _usual("cache")


def data_folder() -> Path:
    """Where pulled models are kept; on Linux $XDG_DATA_HOME/codespec."""
    return _usual("data")


def config_folder() -> Path:
    """Where the user's configuration file is; on Linux $XDG_CONFIG_HOME/codespec."""
    return _usual("config")


def _usual(kind: str) -> Path:
    """The user's folder of a kind by the system's conventions. A Linux machine needs no package for it: a borrowed GPU
    machine may lack platformdirs.
    """
    if sys.platform == "linux":
        named = os.environ.get(f"XDG_{kind.upper()}_HOME", "")
        return Path(named if os.path.isabs(named) else os.path.expanduser(_ON_LINUX[kind])) / NAME
    import platformdirs

    return Path(getattr(platformdirs, f"user_{kind}_path")(NAME))


def _named_by(variable: str) -> Path | None:
    """The folder that a variable names. It holds on every system, and a relative path too: the conventions
    ignore a relative one and, on Windows, the variable."""
    named = os.environ.get(variable)
    return Path(named) / NAME if named else None


def make_state_folder() -> Path:
    """The state folder, made for this user alone where it is missing. Raises OSError."""
    folder = state_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def own_folder() -> Path:
    """The state folder, where nobody else can change what is in it. Raises ConfigError."""
    folder = state_folder()
    try:
        make_state_folder()
        check_folder()
    except OSError as error:
        said = f"The folder {folder} can't be made ({error.strerror})"
        raise ConfigError(f"{said}: make room for it, or set XDG_STATE_HOME.") from error
    return folder


def check_folder() -> None:
    """Raises ConfigError where others can change what is in the state folder, OSError where there is none."""
    folder = state_folder()
    found = folder.stat()
    if not _is_ours(found):
        raise ConfigError(f"{folder} belongs to another user: set XDG_STATE_HOME to a folder of your own.")
    if _allows(found, _OTHERS_WRITE):
        raise ConfigError(f"Other users can write to {folder}: run `chmod 700 {folder}`.")


def read_secret() -> bytes:
    """The user's secret, made by whoever asks for it first. Raises ConfigError where others may know it."""
    file = own_folder() / "secret"
    try:
        if not os.path.lexists(file):
            _make_secret(file)
        found = file.lstat()  # a link is everybody's
        if not _is_ours(found) or _allows(found, _OTHERS):
            raise ConfigError(f"Other users may know the secret in {file}: remove it, and restart the daemon.")
        secret = read_regular(file, SECRET_BYTES)
        if len(secret) != SECRET_BYTES:
            raise Unreadable("it is not whole")
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"The secret in {file} can't be used ({why}): remove it, and restart the daemon.") from error
    return secret


def _make_secret(file: Path) -> None:
    """Whole or not at all, and never in place of one that another process made meanwhile."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".part")  # for this user alone
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(secrets.token_bytes(SECRET_BYTES))
        with suppress(FileExistsError):
            os.link(name, file)
    finally:
        Path(name).unlink(missing_ok=True)


def socket_of(port: int) -> Path:
    """The socket of the daemon that listens on this port too."""
    return state_folder() / f"daemon-{port}.sock"


def is_own_socket(path: Path) -> bool:
    """Whether it is a socket that this user made, and that nobody else can have put there."""
    try:
        check_folder()
        found = path.lstat()
    except (OSError, ConfigError):
        return False
    return stat.S_ISSOCK(found.st_mode) and _is_ours(found)


def _is_ours(found: os.stat_result) -> bool:
    return sys.platform == "win32" or found.st_uid == os.geteuid()


def _allows(found: os.stat_result, bits: int) -> bool:
    return sys.platform != "win32" and bool(found.st_mode & bits)
