"""`codespec serve`: the daemon in the foreground. Knows flags; the server knows the rest."""

from __future__ import annotations

import argparse
from typing import Any

from codespec.cli.options import add_engine_options, count, engine_config, require_aiohttp, require_torch

SERVE_SETTINGS = (
    "host", "port", "socket", "token_file", "queue", "drain_seconds", "prefetch", "audit_every", "access_log",
    "log_kb",
)  # fmt: skip


def add_parser(commands: Any) -> None:
    """Adds the command and its flags."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="run the daemon that editors and completion clients ask",
        description="Serves completions over HTTP in many clients' dialects; see the README for the endpoints.",
        allow_abbrev=False,
    )
    group = parser.add_argument_group("where and for whom (also CODESPEC_SERVE_* variables and [serve] in --config)")
    group.add_argument("--host", help="an address of this machine (default 127.0.0.1); others need a token")
    group.add_argument("--port", type=int, metavar="N", help="default 8765; 0 takes a free one")
    group.add_argument(
        "--socket", metavar="PATH", help="a Unix socket as well (default auto: in your state folder; none)"
    )
    group.add_argument("--token-file", metavar="FILE", help="every request must bring the token in this file")
    group.add_argument("--queue", type=int, metavar="N", help="requests that may wait (default 64); more get 429")
    group.add_argument("--drain-seconds", type=int, metavar="N", help="for open requests at the end (default 30)")
    group.add_argument(
        "--prefetch",
        action=argparse.BooleanOptionalAction,
        help="go on behind each text as if it were accepted, while idle (default yes)",
    )
    group.add_argument(
        "--audit-every",
        type=int,
        metavar="N",
        help="in exact mode, decode one completion in N again without drafts, while idle (default 200; 0: none)",
    )
    group.add_argument("--access-log", action="store_true", default=None, help="a line for each request, without text")
    group.add_argument("--log-kb", type=int, metavar="N", help="drop the older lines of a larger log file (0: never)")
    add_engine_options(parser)
    parser.add_argument("--max-batch", type=count, metavar="N|auto", help="requests that run at once (default auto)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serves until a signal comes; returns 0."""
    config = engine_config(options, max_batch=options.max_batch)
    require_aiohttp()
    from codespec.server.lifecycle import serve
    from codespec.server.loading import loader
    from codespec.server.settings import resolve_serve

    flags = {name: getattr(options, name) for name in SERVE_SETTINGS}
    settings = resolve_serve(flags, options.config)
    return serve(settings, loader(config, require_torch, settings.prefetch, settings.audit_every))
