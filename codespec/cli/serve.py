"""`codespec serve`: the daemon in the foreground. Knows flags; the server knows the rest."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from codespec.cli.options import add_engine_options, choose_config, count, require_aiohttp, require_torch
from codespec.cli.parser import Parser

SERVE_SETTINGS = (
    "host", "port", "socket", "token_file", "queue", "drain_seconds", "prefetch", "audit_every", "access_log",
    "log_kb",
)  # fmt: skip


def add_parser(commands: Any) -> None:
    """Adds the command and its flags."""
    parser: Parser = commands.add_parser(
        "serve",
        help="run the daemon that editors and completion clients ask",
        usage="%(prog)s [options]",
        description="Serves completions over HTTP in many clients' dialects; docs/clients.md lists the endpoints.",
    )
    group = parser.add_argument_group("where and for whom (also CODESPEC_SERVE_* variables and [serve] in --config)")
    group.add_argument("--host", help="an address of this machine (default 127.0.0.1); others need a token")
    group.add_argument("--port", type=int, metavar="N", help="default 8765; 0 takes a free one")
    group.add_argument(
        "--socket", metavar="PATH", help="a Unix socket as well (default auto: in your state folder; none)"
    )
    group.add_argument("--token-file", metavar="FILE", help="every request must bring the token in this file")
    rare = partial(parser.add_rare, group)
    rare("--queue", type=int, metavar="N", help="requests that may wait (default 64); more get 429")
    rare("--drain-seconds", type=int, metavar="N", help="for open requests at the end (default 30)")
    rare(
        "--prefetch",
        action=argparse.BooleanOptionalAction,
        help="go on behind each text as if it were accepted, while idle (default yes)",
    )
    rare(
        "--audit-every",
        type=int,
        metavar="N",
        help="in exact mode, decode one completion in N again without drafts, while idle (default 200; 0: none)",
    )
    rare("--access-log", action="store_true", default=None, help="a line for each request, without text")
    rare("--log-kb", type=int, metavar="N", help="drop the older lines of a larger log file (0: never)")
    add_engine_options(parser)
    parser.add_rare(group, "--max-batch", type=count, metavar="N|auto", help="requests that run at once (default auto)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serves until a signal comes; returns 0."""
    _measure_once(options)
    config = choose_config(options, max_batch=options.max_batch).config
    require_aiohttp()
    from codespec.server.lifecycle import serve
    from codespec.server.loading import loader
    from codespec.server.settings import resolve_serve

    flags = {name: getattr(options, name) for name in SERVE_SETTINGS}
    notes: list[str] = []
    settings = resolve_serve(flags, options.config, notes=notes)
    for note in notes:
        print(f"codespec: {note}", file=sys.stderr, flush=True)
    return serve(settings, loader(config, require_torch, settings.prefetch, settings.audit_every))


def _measure_once(options: argparse.Namespace) -> None:
    """Measures the machine if no model is named and its speed decides which default model is served."""
    from codespec.model_folders.choice import default_depends_on_speed, named_model
    from codespec.model_folders.step_time import measure_step

    if default_depends_on_speed() and not named_model(
        {"model": options.model, "target": options.target}, options.config
    ):
        measure_step(lambda line: print(f"codespec: {line}", file=sys.stderr, flush=True))
