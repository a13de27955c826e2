"""The argument parser of all commands, and their shared flags for the engine's settings and the daemon's address."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from codespec.api.config import EngineConfig, resolve_serve
from codespec.api.limits import is_host
from codespec.api.settings import Settings, declared, plain, read_caps
from codespec.client.connections import ProvenConnections
from codespec.client.daemon_client import DaemonClient, Found, RawEvent
from codespec.errors import Absent, ConfigError, install_fix
from codespec.store.choice import ModelChoice, choose
from codespec.store.machine import has_native, require_kernels
from codespec.store.resolve import open_pair, resolve
from codespec.user_folders import read_token

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

MISTAKE = 2  # exit code
SETTINGS = tuple(declared(EngineConfig))
PAIR = ("model", "target", "drafter")  # settings that name models
SECONDS = 3.0  # timeout for each step of a short exchange with a daemon


class Parser(argparse.ArgumentParser):
    """An argparse parser that rejects abbreviated flags. `--help-all` shows settings that `--help` leaves out."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})
        self._short: dict[argparse.Action, str] = {}  # texts that --help shows instead of a flag's whole help

    def add_short(self, short: str, group: argparse._ActionsContainer, *flags: str, **settings: Any) -> None:
        """Add a flag whose help text is `short` in --help (SUPPRESS: none) and `settings["help"]` in --help-all."""
        if not self._short:
            self.add_argument("--help-all", action=_HelpAll, help="show all settings and exit")
        self._short[group.add_argument(*flags, **settings)] = short

    def format_help(self) -> str:
        """Return the text of --help."""
        texts = {action: action.help for action in self._short}
        for action, text in self._short.items():
            action.help = text
        try:
            return super().format_help()
        finally:
            for action, whole in texts.items():
                action.help = whole

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but exit for unknown arguments, so that the error names the sub-command's help."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Print the error and the command that shows the help, and exit with status 2."""
        self.exit(MISTAKE, f"codespec: {one_line(message)}; see `{self.prog} --help`.\n")


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        sys.stdout.write(argparse.ArgumentParser.format_help(parser))
        parser.exit()


def one_line(text: str) -> str:
    """Replace line breaks, which file and model names may contain, with spaces."""
    return " ".join(text.splitlines())


def count(text: str) -> int:
    """Parse an integer, or `auto` as 0; raise ArgumentTypeError for other text."""
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
    """Add the flag --config, whose value is parsed as `Settings` (default: the user's own configuration file)."""
    group.add_argument("--config", type=Settings, default=Settings(), metavar="FILE", help=words)


def add_flag(parser: Parser, group: argparse._ActionsContainer, schema: type, name: str) -> None:
    """Add a setting's flag, with None as the default. The flag's type and help come from the setting's declaration.

    `--help-all` shows the whole help text; `--help` shows only common settings, with the text before the first `;`.
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
    """Build an engine. Raises ConfigError if a required package is not installed, ModelError if a model is missing."""
    if not is_installed("torch"):
        require_engine(config)  # an error before minutes of conversion
    pair = open_pair(config)  # an error before torch is imported, which takes seconds
    require_engine(config)
    from codespec.engine.engine import Engine

    return Engine.build(config, pair=pair)


def engine_config(options: argparse.Namespace, **overrides: Any) -> EngineConfig:
    """Return the engine's settings. Raises ConfigError for invalid settings, and ModelError for a missing model."""
    config = choose_config(options, **overrides).config
    for name in (config.target, config.drafter if config.asks_drafter else "none"):
        if name != "none":
            resolve(name)
    return config


def choose_config(options: argparse.Namespace, **overrides: Any) -> ModelChoice:
    """Return the engine's settings and the reason for the choice of models. The models need not be installed."""
    flags = {name: getattr(options, name) for name in SETTINGS}
    return choose({**flags, **overrides}, options.config)


def is_installed(name: str) -> bool:
    """Return whether a package is installed, without importing it."""
    return importlib.util.find_spec(name) is not None


def require_package(name: str) -> None:
    """Raise ConfigError if this dependency of codespec is not installed."""
    if not is_installed(name):
        raise ConfigError(f"{name} is not installed", install_fix())


def require_engine(config: EngineConfig) -> None:
    """Raise ConfigError if a package that the configured models need is not installed or does not load."""
    require_package("numpy")
    if not config.needs_torch or (not has_native() and not is_installed("torch")):
        require_kernels()  # if torch is missing too, the kernels are the smaller installation
    if config.needs_torch:
        require_torch()


def require_torch() -> None:
    """Raise ConfigError if torch or transformers is not installed, or if torch does not load."""
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
    """A daemon's host, port and token ("": no token), with a client for synchronous code."""

    host: str
    port: int
    token: str = ""

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def look(self) -> Found:
        """Identify the program at the address; raise ConfigError if this client's secret can't be read."""

        async def call() -> Found:
            async with self._client(SECONDS) as client:
                return await client.look()

        return asyncio.run(call())

    def stream(self, body: Mapping[str, Any], seconds: float) -> Iterator[RawEvent]:
        """Send a request and yield the daemon's events. Raises DaemonError, also if `seconds` pass without an event.

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
            raise Absent("The daemon's stream ended before the completion was finished", "run `codespec doctor`")

    def _client(self, seconds: float) -> DaemonClient:
        fix = "check --url and --token-file"
        # The port is used, not the Unix socket, because `codespec doctor` checks the port.
        proven = ProvenConnections(self.url, self.token, fix, seconds=SECONDS, patience=seconds, by_socket=False)
        return DaemonClient(proven)


def add_address_options(parser: argparse.ArgumentParser, *, config: bool = True) -> None:
    """Add the flags --url and --token-file and, if `config` is true, --config."""
    parser.add_argument("--url", metavar="URL", help="where the daemon listens (default: as `codespec serve` would)")
    if config:
        add_config_option(parser, "the daemon's TOML file")
    parser.add_argument("--token-file", metavar="FILE", help="a file with the daemon's token")


def find_address(options: argparse.Namespace) -> Address:
    """Return the daemon's address and token from --url, --token-file or the daemon's settings. Raises ConfigError."""
    config = resolve_serve({"token_file": getattr(options, "token_file", None)}, options.config)
    return address_of(getattr(options, "url", None), config.host, config.port, read_token(config.token_file))


def address_of(url: str | None, host: str, port: int, token: str) -> Address:
    """Return the daemon's address from `url`, or from `host` and `port` if `url` is None. Raises ConfigError."""
    if url is None:  # a daemon that listens on all interfaces is reached through loopback
        return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port, token)
    match = re.fullmatch(r"http://(\[[0-9a-fA-F:]+\]|[^/:\[\]@]+):(\d{1,5})/?", url)
    if match is None or not 0 < int(match[2]) < 65536 or not is_host(match[1].strip("[]")):
        raise ConfigError(f"--url {url[:80]} is not valid", "write http://HOST:PORT, as `codespec serve` prints it")
    return Address(match[1].strip("[]"), int(match[2]), token)
