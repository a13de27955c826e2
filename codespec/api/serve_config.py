"""The daemon's own settings, resolved like the engine's: defaults < [serve] in a TOML file < CODESPEC_SERVE_* < flags.

This module defines names and ranges, and checks whether other machines can reach an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codespec.api.declared import check_values, setting
from codespec.api.levels import Settings
from codespec.api.limits import is_host, is_loopback
from codespec.errors import ConfigError
from codespec.user_folders import TOKEN_VARIABLE

EDITOR_IDLE_UNLOAD = 30.0  # minutes
EDIT_FORMATS = ("auto", "none", "sweep-server", "sweep-card", "zeta-2.1", "zeta-2", "zeta-1", "chat")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Settings of the daemon. Raises ConfigError for an invalid value."""

    host: str = setting(
        "127.0.0.1", "address to listen on; one that other machines can reach needs a token", common=True
    )
    port: int = setting(
        8765, "0: any free port, which the first printed line reports", metavar="N", least=0, most=65535, common=True
    )
    socket: str = setting(
        "auto",
        "a Unix socket in addition to the port: a path, `none`, or `auto` (`daemon-PORT.sock` in the state folder, "
        "which proves to editors that the daemon belongs to their user)",
        metavar="PATH",
        common=True,
    )
    token_file: str = setting(
        "",
        "every request must carry the token in this file; `CODESPEC_SERVE_TOKEN` can hold the token instead",
        shown="none",
        metavar="FILE",
        common=True,
    )
    upstream: str = setting(
        "",
        "the URL of an OpenAI-compatible server that generates the text, instead of a model on this machine "
        "([upstream.md](upstream.md))",
        metavar="URL",
        common=True,
    )
    upstream_token_file: str = setting(
        "", "a file with the upstream server's key", shown="none", metavar="FILE", common=True
    )
    upstream_model: str = setting(
        "", "the model to request, if the upstream server has several", shown="its only one", metavar="NAME"
    )
    upstream_prompt: int = setting(
        2048,
        "tokens of an editor prompt that are sent upstream: three bytes count as one until usage shows fewer",
        metavar="N",
        least=256,
        most=65_536,
    )
    upstream_patience: float = setting(
        30.0,
        "seconds without an event after which the upstream server counts as hung",
        metavar="SECONDS",
        least=0.1,
        most=600.0,
    )
    keys: str = setting(
        "",
        "every request must carry the token or one of the keys in this file, which [`codespec keys`]"
        "(clients.md#a-team) writes; changes apply within seconds",
        shown="none",
        metavar="FILE",
        common=True,
    )
    metrics_token_file: str = setting(
        "", "`/metrics` also accepts the token in this file, which no other route accepts", shown="none", metavar="FILE"
    )
    queue: int = setting(64, "requests that may wait; further ones get 429", metavar="N", least=0, most=10_000)
    drain_seconds: int = setting(
        30, "how long a stopping daemon waits for open requests", metavar="N", least=0, most=3600
    )
    prefetch: bool = setting(True, "while idle, compute the continuation of each completion as if it were accepted")
    edit_format: str = setting(
        "auto",
        "the prompt format of [next edits](edits.md#models); `auto`: by the model",
        choices=EDIT_FORMATS,
    )
    idle_unload: float = setting(
        0.0,
        "minutes without a request after which the models are freed, until the next request loads them again; "
        "0: never; no effect with `upstream`",
        shown=f"{EDITOR_IDLE_UNLOAD:g} if an editor started the daemon, else 0",
        metavar="MINUTES",
        least=0.0,
        most=525_600.0,
    )
    access_log: bool = setting(False, "one line per request: method, route, status and duration, never text")
    log_kb: int = setting(
        0,
        "size in kB at which the older half of a log file on stdout or stderr is dropped; 0: never",
        metavar="N",
        least=0,
        most=1_000_000,
    )

    def __post_init__(self) -> None:
        check_values(self)
        if not self.host:
            raise ConfigError("host is empty", "give an address of this machine, for example 127.0.0.1")
        if not is_host(self.host):
            shown = self.host[:80]
            raise ConfigError(f"host {shown!r} is invalid", "write it as 127.0.0.1, ::1 or a name, without a port")


def resolve_serve(flags: Mapping[str, Any], settings: Settings, *, on_demand: bool = False) -> ServeConfig:
    """Return the daemon's settings; with `on_demand`, idle models are freed by default.

    Raises ConfigError for the first key or variable that can't be used.
    """
    values: dict[str, Any] = {"idle_unload": EDITOR_IDLE_UNLOAD} if on_demand else {}
    for level in settings.levels(ServeConfig, flags, "serve"):
        values.update(level.values)
    return ServeConfig(**values)


def check_bind(host: str, token: str, keys: str = "") -> None:
    """Raise ConfigError if other machines could reach a daemon that requires neither a token nor a key."""
    if not token and not keys and not is_loopback(host):
        raise ConfigError(
            f"Other machines can reach {host}, and nothing authenticates them",
            f"give --token-file, --keys or {TOKEN_VARIABLE}, or bind 127.0.0.1",
        )
