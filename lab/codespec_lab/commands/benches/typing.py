"""`codespec bench typing`: flags and entry point."""

from __future__ import annotations

import argparse
from typing import Any

from codespec.cli.options import engine_config, require_aiohttp, require_torch
from codespec_lab.commands.benches.flags import add_site_flags, bench_parser, count, finish, refuse_two_sources


def add(benches: Any) -> None:
    """Add the command."""
    parser = bench_parser(
        benches,
        "typing",
        "a typist works through the language server, with and without speculation in turn; a later run continues the "
        "--json file",
        run,
    )
    add_site_flags(parser, "prompts instead, whose last lines are typed")
    parser.add_argument("--limit", type=count, default=12, metavar="N", help="pairs of places (12, some 15 minutes)")
    parser.add_argument("--pace", type=_pace, default=1.0, metavar="N", help="times as fast as most people type (1)")
    parser.add_argument("--minutes", type=count, metavar="N", help="begin no place that would end later than this")


def run(options: argparse.Namespace) -> int:
    """Run `codespec bench typing`."""
    refuse_two_sources(options)
    require_torch()
    require_aiohttp()
    from codespec_lab.bench.typing.report import charts, report
    from codespec_lab.bench.typing.run import TypingBench, run_typing_bench
    from codespec_lab.bench.typing.summary import mismatches

    bench = TypingBench(
        config=engine_config(options),
        held_out=options.held_out,
        prompts=options.prompts,
        file=options.json,
        limit=options.limit,
        pace=options.pace,
        minutes=options.minutes,
    )
    found = run_typing_bench(bench)
    return finish(options, found, report(found), charts(found), mismatches(found["sections"]), kept=True)


def _pace(text: str) -> float:
    """Parse a number above 0 and at most 100, for argparse."""
    try:
        pace = float(text)
    except ValueError:
        pace = 0.0
    if not 0.0 < pace <= 100.0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0 and at most 100")
    return pace
