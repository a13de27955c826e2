"""`codespec serve`: run the daemon in the foreground."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from codespec.api.config import EDITOR_IDLE_UNLOAD, ServeConfig, resolve_serve
from codespec.api.settings import declared
from codespec.cli.options import Parser, add_engine_options, add_flag, choose_config, require_engine, require_package
from codespec.cli.parts import find_back_end
from codespec.store.choice import default_depends_on_speed, named_model
from codespec.store.disk import say
from codespec.store.machine import measure_step

if TYPE_CHECKING:
    from codespec.server.daemon import Source


def add_parser(commands: Any) -> None:
    parser: Parser = commands.add_parser(
        "serve",
        help="run the daemon for editors and completion clients",
        usage="%(prog)s [options]",
        description="Serves completions over HTTP in many clients' dialects; docs/clients.md lists the endpoints.",
    )
    group = parser.add_argument_group("address and access (also CODESPEC_SERVE_* variables and [serve] in --config)")
    for name in declared(ServeConfig):
        add_flag(parser, group, ServeConfig, name)
    parser.add_short(
        argparse.SUPPRESS,
        group,
        "--on-demand",
        action="store_true",
        help="set by editors, which start the daemon again when they need it: idle_unload is "
        f"{EDITOR_IDLE_UNLOAD:g} unless it is set, and the daemon ends after a day without a request",
    )
    add_engine_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal arrives or, with --on-demand, a day passes without a request; return the exit code."""
    flags = {name: getattr(options, name) for name in declared(ServeConfig)}
    settings = resolve_serve(flags, options.config, on_demand=options.on_demand)
    source = find_back_end().connect(options, settings) if settings.upstream else _engine_source(options, settings)
    from codespec.server.app import UNUSED_SECONDS, serve

    return serve(source, settings, UNUSED_SECONDS if options.on_demand else 0.0)


def _engine_source(options: argparse.Namespace, settings: ServeConfig) -> Source:
    """Return a thread whose engine loads the models after the daemon has begun to listen."""
    named = {"model": options.model, "target": options.target}
    if default_depends_on_speed() and not named_model(named, options.config):
        measure_step(say)
    choice = choose_config(options)
    require_package("aiohttp")
    from codespec.server.engine_thread import EngineThread, loader

    load = loader(choice.config, partial(require_engine, choice.config), settings.prefetch)
    return EngineThread(load, 60 * settings.idle_unload)
