"""Flags shared by several commands, and how to build an engine from them. Loads no models."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from codespec.api.declared import declared, plain
from codespec.api.engine_config import EngineConfig
from codespec.api.levels import RENAMED_VALUES, Settings, read_caps
from codespec.cli.parser import Parser
from codespec.errors import ConfigError, install_fix
from codespec.store.choice import ModelChoice, choose
from codespec.store.disk import say
from codespec.store.machine import has_native, require_kernels
from codespec.store.resolve import check_models, open_pair

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

SETTINGS = tuple(declared(EngineConfig))


def count(text: str) -> int:
    """Parse an integer, or `auto`, which is 0."""
    if text != "auto" and not text.lstrip("-").isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor auto")
    return 0 if text == "auto" else int(text)


def add_engine_options(parser: Parser, *, aliases: Mapping[str, str] = {}, leave_out: Sequence[str] = ()) -> None:
    """Add the engine's settings as flags, except those in `leave_out`.

    `aliases` maps settings to a second flag name. Defaults come from the configuration.
    """
    group = parser.add_argument_group("models and speculation (also CODESPEC_* variables and --config)")
    add_config_option(group)
    for name in SETTINGS:
        if name in leave_out:
            parser.set_defaults(**{name: None})
        else:
            add_flag(parser, group, EngineConfig, name, *((aliases[name],) if name in aliases else ()))


def add_pair_options(parser: Parser, group: argparse._ActionsContainer) -> None:
    """Add --config, --model, --target and --drafter."""
    add_config_option(group)
    for name in ("model", "target", "drafter"):
        add_flag(parser, group, EngineConfig, name)


def add_config_option(
    group: argparse._ActionsContainer, words: str = "a TOML file of settings (default: your own config.toml)"
) -> None:
    """Add --config, whose value is the command's settings."""
    group.add_argument("--config", type=Settings, default=Settings(), metavar="FILE", help=words)


def add_flag(parser: Parser, group: argparse._ActionsContainer, schema: type, name: str, *aliases: str) -> None:
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
        words["choices"] = (*facts.choices, *RENAMED_VALUES.get(name, ()))
        words["metavar"] = "{" + ",".join(facts.choices) + "}"
    else:
        words |= {"metavar": facts.metavar, "type": count if facts.automatic else {dict: read_caps}.get(kind, kind)}
    flags = (f"--{name.replace('_', '-')}", *aliases)
    short = text.partition("; ")[0]
    parser.add_short(short if facts.common else argparse.SUPPRESS, group, *flags, **words)


def load_engine(config: EngineConfig) -> Engine:
    """Build an engine. Raise ConfigError if the installation lacks the engine's packages.

    Raise ModelError for a missing model before torch is imported, which takes seconds.
    """
    pair = open_pair(config)
    require_engine(config)
    from codespec.engine.build import build_engine

    return build_engine(config, pair=pair)


def engine_config(options: argparse.Namespace, **overrides: Any) -> EngineConfig:
    """Return the engine's settings for the given flags, and print a note for each setting of an earlier version.

    Raise ModelError for a missing model before torch is imported, which takes seconds.
    """
    choice = choose_config(options, **overrides)
    say(*choice.notes)
    check_models(choice.config)
    return choice.config


def choose_config(options: argparse.Namespace, **overrides: Any) -> ModelChoice:
    """Return the settings for the given flags, and the reason for the models, which need not be present."""
    flags = {name: getattr(options, name) for name in SETTINGS}
    return choose({**flags, **overrides}, options.config)


def require_aiohttp() -> None:
    """Raise ConfigError if the daemon's package is not installed."""
    if importlib.util.find_spec("aiohttp") is None:
        raise ConfigError("aiohttp is not installed", install_fix())


def require_engine(config: EngineConfig) -> None:
    """Raise ConfigError if a package that computes the configured models is not installed or does not load."""
    if importlib.util.find_spec("numpy") is None:
        raise ConfigError("numpy is not installed", install_fix())
    if not config.needs_torch:
        require_kernels()
    else:
        require_kernels_or_torch()
        require_torch()


def require_kernels_or_torch() -> None:
    """Raise ConfigError for the kernels if neither is installed: with them, most models need no torch."""
    if not has_native() and importlib.util.find_spec("torch") is None:
        require_kernels()


def require_torch() -> None:
    """Raise ConfigError if torch and its companions are not installed or do not load."""
    try:
        import torch  # noqa: F401

        if importlib.util.find_spec("transformers") is None:  # its import takes seconds
            raise ModuleNotFoundError(name="transformers")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed", install_fix("torch")) from error
    except (ImportError, OSError) as error:
        fix = install_fix("torch", flags="--force-reinstall")
        raise ConfigError(f"torch is installed but does not load ({error})", fix) from error
