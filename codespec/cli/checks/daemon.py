"""Check the daemon: its token, the program on its port, its state, and a short text that it completes twice."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any

from codespec import __version__
from codespec.cli.checks.engine import ARITHMETIC, DIFFER, FAST_SET, PROMPT, TOKENS, milliseconds, varying
from codespec.cli.daemon_call import Address
from codespec.client.daemon_client import Found
from codespec.contract.serve_config import ServeConfig, check_bind
from codespec.errors import ConfigError, DaemonError, Finding, State, failed, from_fault, warning, well
from codespec.user_folders import named_path, read_token

PROBE_SECONDS = 60.0  # for a daemon that is busy
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


def check_port(address: Address, found: Found) -> Finding:
    """Report which program listens at the address."""
    if found.who == "daemon":
        return well("port", f"your daemon listens on {address.url}")
    if found.who == "locked":
        return warning("port", f"a daemon on {address.url} requires its token", "give --token-file")
    if found.who == "stranger":
        message = f"{address.url} is used by another HTTP server, or by a daemon that can't prove that it is yours"
        return failed("port", message, OTHER_PORT)
    if found.who == "silent":
        return failed("port", f"{address.url} is used by a program that does not speak HTTP", OTHER_PORT)
    return well("port", f"{address.url} is free")


def check_daemon(found: Found) -> Iterator[Finding]:
    """Check the daemon's state and version."""
    if found.who != "daemon":
        message = "not checked" if found.who != "nobody" else "none runs; `codespec serve` or an editor starts one"
        yield well("daemon", message)
        return
    version, state = found.daemon["version"], found.daemon["state"]
    if version != __version__:
        message = f"the daemon is codespec {version}, this is {__version__}"
        yield warning("version", message, "restart the daemon")
    if state == "ready":
        yield well("daemon", f"ready, model {found.daemon.get('model')}{_prompts(found.daemon)}")
        return
    if state == "idle":
        reason, model = found.daemon.get("reason"), found.daemon.get("model")
        yield well("daemon", f"idle ({reason}), model {model}; the next request loads it")
        return
    severity, fix = STATES.get(state, ("failed", "restart it"))
    reason = found.daemon.get("reason")
    yield Finding("daemon", severity, f"{state} ({reason})" if reason else state, fix)


def _prompts(daemon: Mapping[str, Any]) -> str:
    """Return the prompt budget of editor requests, or "" if it is the whole context."""
    context, tokens = daemon.get("context"), daemon.get("prompt_budget")
    if not isinstance(context, int) or not isinstance(tokens, int) or tokens >= context:
        return ""
    return f"; reads {tokens:,} tokens of a new document (first_answer_ms), context {context:,}"


def check_daemon_arithmetic(daemon: Mapping[str, Any]) -> Finding:
    """Report the result of a ready daemon, which tests its models at startup and compares texts in idle time."""
    if variance := daemon.get("variance"):
        return varying(str(variance))
    return well(ARITHMETIC, FAST_SET if daemon.get("mode") == "fast" else "the daemon is in exact mode")


def probe_daemon(address: Address) -> Finding:
    """Complete a short text twice on a ready daemon, with and without speculation."""
    texts, began = [], time.perf_counter()
    for speculate in (True, False):
        body = {"prefix": PROMPT, "path": "point.py", "shape": "raw", "max_tokens": TOKENS, "speculate": speculate}
        try:
            texts.append(address.complete(body, PROBE_SECONDS))
        except DaemonError as error:
            return failed(
                "probe", f"the daemon did not complete a short text ({error})", "read its output, or restart it"
            )
    if texts[0] != texts[1]:
        return failed("probe", "the daemon writes another text with speculation than without", DIFFER)
    return well("probe", f"the daemon wrote {len(texts[0])} characters twice, equal, in {milliseconds(began)}")
