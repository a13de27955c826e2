"""`codespec keys`: add, list and revoke the keys of a shared daemon."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from codespec.api.config import resolve_serve
from codespec.cli.options import add_config_option
from codespec.errors import ConfigError
from codespec.store.disk import say
from codespec.user_folders import named_path


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "keys",
        help="make, list and revoke the keys of a shared daemon",
        description="Edits the file of `codespec serve --keys FILE`. A running daemon notices changes within seconds.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(parser))
    adding = actions.add_parser("add", help="make a key and print it, once", description="Makes a key and prints it.")
    adding.add_argument("name", metavar="NAME", help="holder of the key, as shown in metrics")
    listing = actions.add_parser("list", help="list the names", description="Lists the keys' names and dates.")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    revoking = actions.add_parser("revoke", help="remove a key", description="Removes a key; its requests end.")
    revoking.add_argument("name", metavar="NAME", help="name of the key, as in `codespec keys list`")
    for action, run in ((adding, run_add), (listing, run_list), (revoking, run_revoke)):
        action.add_argument("--keys", metavar="FILE", help="the keys file (default: the setting `keys` of the daemon)")
        add_config_option(action, "the daemon's TOML file")
        action.set_defaults(run=run)


def run_add(options: argparse.Namespace) -> int:
    """Create a key, print nothing but the key on stdout, and return 0."""
    from codespec.server.keys_file import add_key

    file = find_file(options)
    print(add_key(file, options.name))
    say(f"save the key now, because {file} contains only its hash")
    return 0


def run_list(options: argparse.Namespace) -> int:
    """Print the name and creation date of each key; return 0."""
    from codespec.server.keys_file import read_keys

    keys = read_keys(find_file(options))
    if options.json:
        print(json.dumps({"keys": [{k: v for k, v in asdict(key).items() if k != "sha256"} for key in keys]}))
        return 0
    for key in keys:
        print(f"{key.name:<24}{key.created or 'unknown'}")
    return 0


def run_revoke(options: argparse.Namespace) -> int:
    from codespec.server.keys_file import revoke_key

    revoke_key(find_file(options), options.name)
    print(f"revoked: {options.name}")
    return 0


def find_file(options: argparse.Namespace) -> Path:
    """Return the keys file from --keys or the daemon's settings; raise ConfigError if neither names a file."""
    named = resolve_serve({"keys": options.keys}, options.config).keys
    if not named:
        raise ConfigError("No keys file is set", "add --keys FILE with the file that `codespec serve --keys` uses")
    return named_path(named)
