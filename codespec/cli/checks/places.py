"""The files and folders beside the models: what is kept, the token, the Unix socket. Knows paths and their rights."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from codespec.cli.checks.finding import Finding, failed, from_error, warning, well
from codespec.errors import ConfigError
from codespec.folders import cache_folder, check_folder, read_secret, state_folder
from codespec.server.settings import ServeConfig, check_bind, is_loopback
from codespec.token_file import read_token


def check_folders() -> Iterator[Finding]:
    """Whether what was measured and what was learned can be kept."""
    for name, folder, variable in (
        ("cache", cache_folder(), "XDG_CACHE_HOME"),
        ("state", state_folder(), "XDG_STATE_HOME"),
    ):
        why = why_not_writable(folder)
        if why:
            yield warning(name, f"nothing can be kept in {folder} ({why})", f"make it writable, or set {variable}")
        else:
            yield well(name, f"{folder} is writable")
    yield from _secret()


def _secret() -> Iterator[Finding]:
    """What keeps a daemon from proving that it is the user's own; nothing where all is well."""
    if not state_folder().is_dir():
        return
    try:
        check_folder()
        if (state_folder() / "secret").exists():
            read_secret()
    except ConfigError as error:
        yield from_error("secret", error)


def why_not_writable(folder: Path) -> str:
    """Why no file can be made in a folder, or in the one it would be made in; "" if one can."""
    try:
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(bytes(4096))
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


def check_token(config: ServeConfig) -> Finding:
    """Whether a token is asked for where it must be, and whether its file is the user's own."""
    try:
        token = read_token(config.token_file)
        check_bind(config.host, token)
    except ConfigError as error:
        return from_error("token", error)
    if config.token_file:
        file = Path(config.token_file).expanduser()
        if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return warning("token", f"others on this machine can read {file}", f"run `chmod 600 {file}`")
    if token:
        return well("token", "asked for")
    assert is_loopback(config.host)
    return well("token", "none; only this machine can reach the daemon")


def check_socket(config: ServeConfig) -> Iterator[Finding]:
    """Whether the Unix socket that is named can be made, or who answers there; says nothing where none is."""
    if config.socket in ("", "auto", "none"):
        return
    path, mend = Path(config.socket).expanduser(), "choose another place with --socket"
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        yield _new_socket(path, mend)
        return
    if not is_socket:
        yield failed("socket", f"{path} is there and no socket", mend)
    elif _answers(path):
        yield well("socket", f"a daemon listens on {path}")
    elif os.access(path.parent, os.W_OK):
        yield well("socket", f"{path} was left by a daemon that ended; the next one replaces it")
    else:
        yield failed("socket", f"nobody answers on {path}, and it can't be replaced", mend)


def _new_socket(path: Path, mend: str) -> Finding:
    if not path.parent.is_dir():
        return failed("socket", f"{path.parent} is no folder", f"make it, or {mend}")
    why = why_not_writable(path.parent)
    return failed("socket", f"{path} can't be made ({why})", mend) if why else well("socket", f"{path} can be made")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
