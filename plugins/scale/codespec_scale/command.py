"""`codespec scale up`: run several daemons behind one address on this machine, with Ray Serve."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

from codespec.api.config import ServeConfig
from codespec.api.settings import declared
from codespec.cli.options import SETTINGS, Parser, add_engine_options, add_flag, engine_config, require_package
from codespec.errors import ConfigError, install_fix

REPLICAS = ("socket", "drain_seconds")  # settings that a replica chooses for its daemon


def add_parser(commands: Any) -> None:
    """Add `codespec scale` and its flags to the command line."""
    parser = commands.add_parser("scale", help="run several daemons behind one address (Ray Serve)")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(parser))
    up: Parser = actions.add_parser(
        "up",
        help="start the replicas and serve until a signal arrives",
        usage="%(prog)s --replicas N [options]",
        description="Serves like `codespec serve`, by several daemons; requests with the same x-session-id go to the "
        "same one. docs/team.md has the rest.",
    )
    group = up.add_argument_group("replicas, address and access")
    group.add_argument("--replicas", type=int, metavar="N", required=True, help="number of daemons")
    group.add_argument("--cpus", type=int, metavar="N", default=1, help="processors that Ray reserves for each (1)")
    group.add_argument("--gpus", type=int, metavar="N", default=0, help="GPUs that each one gets (0)")
    for name in declared(ServeConfig):
        if name not in REPLICAS:
            add_flag(up, group, ServeConfig, name)
    add_engine_options(up)
    up.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the replicas until a signal arrives, and return 0. Raises ConfigError."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("Ray is not installed", install_fix(folder="./plugins/scale"))
    require_package("aiohttp")
    engine_config(options)  # an invalid setting is an error here, before any replica is deployed
    from codespec_scale.up import run as run_replicas

    own = ("replicas", "cpus", "gpus", "token_file")
    names = [name for name in (*own, *declared(ServeConfig), *SETTINGS) if name not in ("host", "port", *REPLICAS)]
    settings = {name: spelled(getattr(options, name)) for name in names if getattr(options, name) is not None}
    if options.config.file is not None and not options.config.is_own:
        settings["config"] = str(options.config.file)
    host, port = options.host or ServeConfig().host, ServeConfig().port if options.port is None else options.port
    return run_replicas(host, port, settings)


def spelled(value: Any) -> str:
    """Format a setting's value as the flag of that setting expects it."""
    if isinstance(value, dict):
        return ",".join(f"{name}={number}" for name, number in value.items())
    return str(value)
