"""`codespec serve`: run the daemon in the foreground."""

from __future__ import annotations

import argparse
from typing import Any

from codespec.cli.options import add_engine_options, add_flag, choose_config, require_aiohttp, require_torch
from codespec.cli.parser import Parser
from codespec.contract.declared import declared
from codespec.contract.engine_config import EngineConfig
from codespec.contract.levels import REMOVED, read_levels
from codespec.contract.serve_config import ServeConfig, resolve_serve
from codespec.errors import ConfigError
from codespec.store.choice import default_depends_on_speed, named_model
from codespec.store.disk import say
from codespec.store.machine import measure_step

PAIR = ("model", "target", "drafter")


def add_parser(commands: Any) -> None:
    """Add the command and its flags."""
    parser: Parser = commands.add_parser(
        "serve",
        help="run the daemon for editors and completion clients",
        usage="%(prog)s [options]",
        description="Serves completions over HTTP in many clients' dialects; docs/clients.md lists the endpoints.",
    )
    group = parser.add_argument_group("address and access (also CODESPEC_SERVE_* variables and [serve] in --config)")
    for name in declared(ServeConfig):
        add_flag(parser, group, ServeConfig, name)
    for name in REMOVED["serve"]:
        parser.add_argument(f"--{name.replace('_', '-')}", nargs="?", const="", help=argparse.SUPPRESS)
    add_engine_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal arrives; return 0."""
    flags = {name: getattr(options, name) for name in declared(ServeConfig)}
    flag = "--{} has no effect any more: remove it"
    notes = [flag.format(name.replace("_", "-")) for name in REMOVED["serve"] if getattr(options, name) is not None]
    settings = resolve_serve(flags, options.config, notes=notes)
    say(*notes)
    if settings.upstream:
        return _serve_upstream(options, settings)
    _measure_once(options)
    config = choose_config(options).config
    require_aiohttp()
    from codespec.server.engine_thread import EngineThread
    from codespec.server.lifecycle import serve
    from codespec.server.loading import loader

    return serve(EngineThread(loader(config, require_torch, settings.prefetch)), settings)


def _serve_upstream(options: argparse.Namespace, settings: ServeConfig) -> int:
    """Serve the completions of another server, without torch."""
    named = [f"--{name}" for name in PAIR if getattr(options, name) is not None]
    if named:
        problem = f"{' and '.join(named)} can't be used with an upstream server ({settings.upstream})"
        raise ConfigError(f"{problem}, which has its own model", "leave one of the two out")
    for level in read_levels(EngineConfig, {}, options.config, None):
        unused = [name for name in PAIR if level.values.get(name)]
        if unused:
            names = " and ".join(unused)
            say(f"{settings.upstream} has its own model: remove {names} from {level.place}, or the upstream.")
    require_aiohttp()
    from codespec.server.lifecycle import serve
    from codespec.server.upstream import connect

    return serve(connect(settings), settings)


def _measure_once(options: argparse.Namespace) -> None:
    """Measure the machine if no model is named and its speed decides which default model is served."""
    named = {"model": options.model, "target": options.target}
    if default_depends_on_speed() and not named_model(named, options.config):
        measure_step(say)
