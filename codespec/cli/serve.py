"""`codespec serve`: run the daemon in the foreground."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from codespec.cli.options import add_engine_options, add_flag, choose_config, require_aiohttp, require_torch
from codespec.cli.parser import Parser
from codespec.cli.parts import find_back_end
from codespec.contract.declared import declared
from codespec.contract.engine_config import EngineConfig
from codespec.contract.serve_config import ServeConfig, resolve_serve
from codespec.store.choice import default_depends_on_speed, named_model
from codespec.store.disk import say
from codespec.store.machine import measure_step

if TYPE_CHECKING:
    from codespec.server.loading import LoadedEngine, Progress

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
    add_engine_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal arrives; return 0."""
    flags = {name: getattr(options, name) for name in declared(ServeConfig)}
    notes: list[str] = []
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
    from codespec.server.loading import fits_beside, loader
    from codespec.server.reload import Plan

    def load(config: EngineConfig) -> Callable[[Progress], LoadedEngine]:
        return loader(config, require_torch, settings.prefetch, settings.audit_every)

    def plan(changes: Mapping[str, Any]) -> Plan:
        """Read the settings again, with other models. A new target takes neither the old model nor its drafter."""
        dropped = dict.fromkeys(PAIR) if changes.keys() & {"model", "target"} else {}
        again = choose_config(options, **{**dropped, **changes}).config
        return Plan(load(again), fits_beside(again))

    return serve(EngineThread(load(choice.config)), settings, plan)


def _measure_once(options: argparse.Namespace) -> None:
    """Measure the machine if no model is named and its speed decides which default model is served."""
    named = {"model": options.model, "target": options.target}
    if default_depends_on_speed() and not named_model(named, options.config):
        measure_step(say)
