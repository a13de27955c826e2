"""`codespec bench …`: the benchmarks, each a sub-command whose flags are the fields of its settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from codespec.cli.options import SETTINGS, Parser, add_engine_options, engine_config, require_package, require_torch
from codespec_lab.bench.flags import Bench
from codespec_lab.bench.settings import BENCHES


def add_parser(commands: Any) -> None:
    """Add the command and its benchmarks."""
    parser: argparse.ArgumentParser = commands.add_parser("bench", help="measure on this machine")
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH", parser_class=type(parser))
    for name, kind in BENCHES.items():
        _add_bench(benches, name, kind)


def _add_bench(benches: Any, name: str, kind: type[Bench]) -> None:
    description = f"{kind.about[0].upper()}{kind.about[1:]}."
    parser: Parser = benches.add_parser(
        name, help=kind.about, usage=f"%(prog)s {kind.usage}", description=description, epilog=kind.note or None
    )
    for setting in fields(kind):
        if "flag" in setting.metadata:
            flag, rare, words = setting.metadata["flag"]
            add: Callable[..., Any] = (
                partial(parser.add_short, argparse.SUPPRESS, parser) if rare else parser.add_argument
            )
            add(f"--{flag or setting.name.replace('_', '-')}", dest=setting.name, **words)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures to this file")
    parser.add_argument("--summary", type=Path, metavar="OUT", help="the same without single passes, four digits each")
    left_out = [setting for setting in SETTINGS if kind.engine and setting not in kind.engine]
    add_engine_options(parser, leave_out=left_out)
    parser.set_defaults(run=partial(run, kind))


def run(kind: type[Bench], options: argparse.Namespace) -> int:
    """Run a benchmark."""
    bench = kind.of(engine_config(options), vars(options))
    require_torch()
    if kind.daemon:
        require_package("aiohttp")
    from codespec_lab.bench.harness import carry_out

    return carry_out(bench, options.summary)
