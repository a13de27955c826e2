"""Flags shared by several commands, and what they name: an engine's settings, or a daemon. Loads no models."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from codespec.api.config import EngineConfig, resolve_serve
from codespec.api.limits import is_host
from codespec.api.settings import Settings, declared, plain, read_caps
from codespec.cli.parser import Parser
from codespec.client.connections import ProvenConnections
from codespec.client.daemon_client import DaemonClient, Found, RawEvent
from codespec.errors import Absent, ConfigError, install_fix
from codespec.store.choice import ModelChoice, choose
from codespec.store.machine import has_native, require_kernels
from codespec.store.resolve import open_pair, resolve
from codespec.user_folders import read_token

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

SETTINGS = tuple(declared(EngineConfig))
PAIR = ("model", "target", "drafter")  # the settings that name models
SECONDS = 3.0  # timeout for each step of a daemon's short reply


def count(text: str) -> int:
    """Parse an integer, or `auto`, which is 0."""
    if text != "auto" and not text.lstrip("-").isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor auto")
    return 0 if text == "auto" else int(text)


def add_engine_options(parser: Parser, *, leave_out: Sequence[str] = ()) -> None:
    """Add the engine's settings as flags, except those in `leave_out`."""
    group = parser.add_argument_group("models and speculation (also CODESPEC_* variables and --config)")
    add_config_option(group)
    for name in SETTINGS:
        if name in leave_out:
            parser.set_defaults(**{name: None})
        else:
            add_flag(parser, group, EngineConfig, name)


def add_config_option(
    group: argparse._ActionsContainer, words: str = "a TOML file of settings (default: your own config.toml)"
) -> None:
    """Add --config, whose value is the command's settings."""
    group.add_argument("--config", type=Settings, default=Settings(), metavar="FILE", help=words)


def add_flag(parser: Parser, group: argparse._ActionsContainer, schema: type, name: str) -> None:
    """Add the flag for one setting, as described by its declaration; its default is None.

    `--help-all` shows it with its default, and `--help`, if it is common, with the first part of its text.
    """
    facts, default = declared(schema)[name], getattr(schema(), name)
    kind = type(default)
    shown = facts.shown or (("yes" if default else "no") if kind is bool else str(default))
    ending = f" (default: {shown.strip('`')})" if shown and "](" not in shown else ""
    text = plain(facts.help)
    words: dict[str, Any] = {"help": text + ending, "default": None}
    if kind is bool:
        words["action"] = argparse.BooleanOptionalAction
    elif facts.choices:
        words["choices"] = facts.choices
    else:
        words |= {"metavar": facts.metavar, "type": count if facts.automatic else {dict: read_caps}.get(kind, kind)}
    short = text.partition("; ")[0] if facts.common else argparse.SUPPRESS
    parser.add_short(short, group, f"--{name.replace('_', '-')}", **words)


def load_engine(config: EngineConfig) -> Engine:
    """Build an engine. Raise ConfigError if the installation lacks the engine's packages.

    Raise ModelError for a missing model before torch is imported, which takes seconds.
    """
    if not is_installed("torch"):
        require_engine(config)  # before a model is converted for it, which takes minutes
    pair = open_pair(config)
    require_engine(config)
    from codespec.engine.engine import Engine

    return Engine.build(config, pair=pair)


def engine_config(options: argparse.Namespace, **overrides: Any) -> EngineConfig:
    """Return the engine's settings for the given flags.

    Raise ModelError for a missing model before torch is imported, which takes seconds.
    """
    config = choose_config(options, **overrides).config
    for name in (config.target, config.drafter if config.asks_drafter else "none"):
        if name != "none":
            resolve(name)
    return config


def choose_config(options: argparse.Namespace, **overrides: Any) -> ModelChoice:
    """Return the settings for the given flags, and the reason for the models, which need not be present."""
    flags = {name: getattr(options, name) for name in SETTINGS}
    return choose({**flags, **overrides}, options.config)


def is_installed(name: str) -> bool:
    """Return whether a package can be found; it is not imported. A finder that hides packages may raise."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def require_package(name: str) -> None:
    """Raise ConfigError if one of codespec's own dependencies is not installed."""
    if not is_installed(name):
        raise ConfigError(f"{name} is not installed", install_fix())


def require_engine(config: EngineConfig) -> None:
    """Raise ConfigError if a package that computes the configured models is not installed or does not load."""
    require_package("numpy")
    if not config.needs_torch or (not has_native() and not is_installed("torch")):
        require_kernels()  # without torch too: with them, most models need no torch
    if config.needs_torch:
        require_torch()


def require_torch() -> None:
    """Raise ConfigError if torch and its companions are not installed or do not load."""
    try:
        import torch  # noqa: F401

        if not is_installed("transformers"):  # its import takes seconds
            raise ModuleNotFoundError(name="transformers")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed", install_fix("torch")) from error
    except (ImportError, OSError) as error:
        fix = install_fix("torch", flags="--force-reinstall")
        raise ConfigError(f"torch is installed but does not load ({error})", fix) from error


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a daemon, and its token ("": none): its client without an event loop.

    Connects to the daemon's port, never to its Unix socket, because `codespec doctor` checks that port. Starts nothing.
    """

    host: str
    port: int
    token: str = ""

    @property
    def url(self) -> str:
        """The URL of the daemon."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def look(self) -> Found:
        """Identify the program at the address, within seconds. Raise ConfigError if a proof can't be checked."""

        async def call() -> Found:
            async with self._client(SECONDS) as client:
                return await client.look()

        return asyncio.run(call())

    def stream(self, body: Mapping[str, Any], seconds: float) -> Iterator[RawEvent]:
        """Yield the events of codespec's own endpoint, with at most `seconds` between two. Raise DaemonError.

        Closing the iterator cancels the request.
        """
        client, is_done = self._client(seconds), False
        events = client.events(body)

        async def following() -> RawEvent | None:
            return await anext(events, None)

        with asyncio.Runner() as runner:
            try:
                while event := runner.run(following()):
                    is_done |= event[0] == "done"
                    yield event
            finally:
                runner.run(events.aclose())
                runner.run(client.close())
        if not is_done:
            raise Absent("The daemon's stream ended in the middle", "look with `codespec doctor`")

    def _client(self, seconds: float) -> DaemonClient:
        fix = "check --url and --token-file"
        return DaemonClient(
            ProvenConnections(self.url, self.token, fix, seconds=SECONDS, patience=seconds, by_socket=False)
        )


def add_address_options(parser: argparse.ArgumentParser, *, config: bool = True) -> None:
    """Add --url and --token-file, and --config unless another function adds it."""
    parser.add_argument("--url", metavar="URL", help="where the daemon listens (default: as `codespec serve` would)")
    if config:
        add_config_option(parser, "the daemon's TOML file")
    parser.add_argument("--token-file", metavar="FILE", help="a file with the daemon's token")


def find_address(options: argparse.Namespace) -> Address:
    """Return the daemon's address from --url, or from the settings it was started with. Raise ConfigError."""
    config = resolve_serve({"token_file": getattr(options, "token_file", None)}, options.config)
    return address_of(getattr(options, "url", None), config.host, config.port, read_token(config.token_file))


def address_of(url: str | None, host: str, port: int, token: str) -> Address:
    """Return the address in `url`, else that of the settings. Raise ConfigError if the URL is invalid."""
    if url is None:  # a daemon that listens on every address is reached on the loopback one
        return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port, token)
    match = re.fullmatch(r"http://(\[[0-9a-fA-F:]+\]|[^/:\[\]@]+):(\d{1,5})/?", url)
    if match is None or not 0 < int(match[2]) < 65536 or not is_host(match[1].strip("[]")):
        raise ConfigError(f"--url {url[:80]} can't be used", "write http://HOST:PORT, as `codespec serve` printed it")
    return Address(match[1].strip("[]"), int(match[2]), token)
