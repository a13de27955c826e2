"""Check the daemon: its token, Unix socket, port, the program on that port and its state."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from codespec import __version__
from codespec.cli.checks.machine import why_not_writable
from codespec.cli.daemon_call import Address, why_taken
from codespec.client.daemon_client import Found
from codespec.contract.serve_config import ServeConfig, check_bind
from codespec.errors import ConfigError
from codespec.finding import Finding, State, failed, from_fault, warning, well
from codespec.token_file import read_token
from codespec.user_folders import named_path

OTHER_PORT = "stop it, or choose another port (`codespec serve --port`, then --url here; or port in [serve] for both)"
STATES: dict[str, tuple[State, str]] = {
    "starting": ("warning", "wait a moment, or read the output of `codespec serve`"),
    "stopping": ("warning", "start it again when it has ended"),
    "failed": ("failed", "fix that and restart it"),
    "stopped": ("failed", "restart it"),
}


def check_token(config: ServeConfig) -> Finding:
    """Check that a token is set if one is required, and that only the user can read its file."""
    try:
        token = read_token(config.token_file)
        check_bind(config.host, token)
    except ConfigError as error:
        return from_fault("token", error.fault)
    if config.token_file:
        file = named_path(config.token_file)
        if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return warning("token", f"others on this machine can read {file}", f"run `chmod 600 {file}`")
    if token:
        return well("token", "required")
    return well("token", "not required; only this machine can reach the daemon")


def check_socket(config: ServeConfig) -> Iterator[Finding]:
    """Check that the configured Unix socket can be created or has a daemon. Yield nothing if none is set."""
    if config.socket in ("", "auto", "none"):
        return
    path, mend = named_path(config.socket), "choose another place with --socket"
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        yield _new_socket(path, mend)
        return
    if not is_socket:
        yield failed("socket", f"{path} exists and is not a socket", mend)
    elif _answers(path):
        yield well("socket", f"a daemon listens on {path}")
    elif os.access(path.parent, os.W_OK):
        yield well("socket", f"{path} was left by a daemon that ended; the next one replaces it")
    else:
        yield failed("socket", f"no daemon answers on {path}, and the socket can't be replaced", mend)


def _new_socket(path: Path, mend: str) -> Finding:
    if not path.parent.is_dir():
        return failed("socket", f"{path.parent} is not a folder", f"create it, or {mend}")
    why = why_not_writable(path.parent)
    if why:
        return failed("socket", f"{path} can't be created ({why})", mend)
    return well("socket", f"{path} can be created")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def check_port(address: Address, found: Found) -> Finding:
    """Report whether a daemon could listen at the address, or which program already does."""
    if found.who == "daemon":
        return well("port", f"your daemon listens on {address.url}")
    if found.who == "locked":
        return warning("port", f"a daemon on {address.url} requires its token", "give --token-file")
    if found.who == "stranger":
        said = f"{address.url} is used by another HTTP server, or by a daemon that can't prove that it is yours"
        return failed("port", said, OTHER_PORT)
    if found.who == "silent":
        return failed("port", f"{address.url} is used by a program that does not speak HTTP", OTHER_PORT)
    why = why_taken(address)
    if why:
        return failed("port", f"a daemon can't listen on {address.url} ({why})", "check host and port in [serve]")
    return well("port", f"{address.url} is free")


def check_daemon(found: Found) -> Iterator[Finding]:
    """Check the daemon's state and version."""
    if found.who != "daemon":
        said = "not checked" if found.who != "nobody" else "none runs; `codespec serve` or an editor starts one"
        yield well("daemon", said)
        return
    version, state = found.daemon["version"], found.daemon["state"]
    if version != __version__:
        said = f"the daemon is codespec {version}, this is {__version__}"
        yield warning("version", said, "restart the daemon")
    if state == "ready":
        yield well("daemon", f"ready, model {found.daemon.get('model')}{_prompts(found.daemon)}")
        return
    severity, mend = STATES.get(state, ("failed", "restart it"))
    reason = found.daemon.get("reason")
    yield Finding("daemon", severity, f"{state} ({reason})" if reason else state, mend)


def _prompts(daemon: Mapping[str, Any]) -> str:
    """Return the prompt budget of editor requests, or "" if it is the whole context."""
    context, tokens = daemon.get("context"), daemon.get("prompt_budget")
    if not isinstance(context, int) or not isinstance(tokens, int) or tokens >= context:
        return ""
    return f"; reads {tokens:,} tokens of a new document (first_answer_ms), context {context:,}"
