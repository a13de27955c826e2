"""`codespec serve`: run the daemon in the foreground."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from codespec.cli.options import add_engine_options, add_flag, choose_config, require_aiohttp, require_engine
from codespec.cli.parser import Parser
from codespec.cli.parts import find_back_end
from codespec.contract.declared import declared
from codespec.contract.levels import REMOVED, SettingsFile
from codespec.contract.serve_config import ServeConfig, resolve_serve
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
    options.config = SettingsFile.read(options.config)  # once, for all of its readers
    flags = {name: getattr(options, name) for name in declared(ServeConfig)}
    removed = [(name, mend) for name, mend in REMOVED["serve"].items() if getattr(options, name) is not None]
    notes = [f"--{name.replace('_', '-')} has no effect any more: {mend}" for name, mend in removed]
    settings = resolve_serve(flags, options.config, notes=notes)
    say(*notes)
    if settings.upstream:
        source = find_back_end().connect(options, settings)
        from codespec.server.lifecycle import serve

        return serve(source, settings)
    _measure_once(options)
    choice = choose_config(options)
    say(*choice.notes)
    require_aiohttp()
    from codespec.server.engine_thread import EngineThread
    from codespec.server.lifecycle import serve
    from codespec.server.loading import loader

    return serve(
        EngineThread(loader(choice.config, partial(require_engine, choice.config), settings.prefetch)), settings
    )


def _measure_once(options: argparse.Namespace) -> None:
    """Measure the machine if no model is named and its speed decides which default model is served."""
    named = {"model": options.model, "target": options.target}
    if default_depends_on_speed() and not named_model(named, options.config):
        measure_step(say)
