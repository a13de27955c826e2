"""`codespec lsp`: run the language server, which is in the package codespec_lsp."""

from __future__ import annotations

import argparse
from typing import Any

from codespec.cli.options import require_package
from codespec.errors import ConfigError
from codespec.store.choice import model_name


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "lsp",
        help="run the language server that editors start",
        description="Serves editors through the Language Server Protocol. Starts the daemon if none runs.",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--stdio", action="store_true", help="speak on standard input and output (the default)")
    where.add_argument("--tcp", type=int, metavar="PORT", help="serve many editors on 127.0.0.1; 0 picks a free port")
    parser.add_argument("--daemon", metavar="URL", help="address of the daemon (default http://127.0.0.1:8765)")
    parser.add_argument("--model", metavar="NAME", help="model for a daemon that it starts, as for `serve`")
    parser.add_argument("--no-start", action="store_true", help="do not start a daemon if none answers")
    parser.add_argument(
        "--copilot", action="store_true", help="speak to plugins made for Copilot's server: UTF-16, no sign-in"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve one editor until it disconnects, or with --tcp all editors until a signal arrives; return the exit code."""
    require_package("pygls")
    from codespec_lsp.messages import serve
    from codespec_lsp.settings import EditorSettings, read_settings

    model = model_name(options.model or "") or None  # an unknown model is an error now, not at the daemon's start
    sent = {"url": options.daemon, "startDaemon": False if options.no_start else None, "model": model}
    defaults, faults = read_settings(sent, EditorSettings())
    if faults:
        raise ConfigError(f"--daemon {options.daemon} is not a valid address", "write http://HOST:PORT")
    if options.tcp is not None and not 0 <= options.tcp <= 65535:
        raise ConfigError(f"--tcp {options.tcp} is not a valid port", "choose a port from 0 to 65535")
    return serve(defaults, options.tcp, copilot=options.copilot)
