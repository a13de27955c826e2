"""`codespec bench proposers`: flags and entry point."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codespec.cli.options import engine_config, require_torch
from codespec_lab.commands.benches.flags import add_site_flags, bench_parser, count, counts, finish


def add(benches: Any) -> None:
    """Add the command."""
    parser = bench_parser(
        benches, "proposers", "who guesses best: lookups, the drafter, heads, and chains of them", run
    )
    add_site_flags(parser, "prompts, one JSON object a line; with --held-out half of each")
    parser.add_argument(
        "--heads", type=Path, nargs="+", default=(), metavar="FOLDER", help="heads of the target, each in a row"
    )
    parser.add_argument("--limit", type=count, default=16, metavar="N", help="prompts (16)")
    parser.add_argument("--tokens", type=count, default=96, metavar="N", help="target tokens a text at most (96)")
    parser.add_argument("--concurrency", type=counts, default=(1, 4, 8), metavar="N,…", help="prompts at once (1,4,8)")


def run(options: argparse.Namespace) -> int:
    """Run `codespec bench proposers`."""
    config = engine_config(options)
    require_torch()
    from codespec_lab.bench.proposers.report import report
    from codespec_lab.bench.proposers.run import ProposerBench, mismatches, run_proposer_bench

    heads = tuple(options.heads) or ((Path(config.head),) if config.head != "none" else ())
    bench = ProposerBench(
        config=config,
        heads=heads,
        held_out=options.held_out,
        prompts=options.prompts,
        limit=options.limit,
        tokens=options.tokens,
        concurrency=options.concurrency,
    )
    found = run_proposer_bench(bench)
    return finish(options, found, report(found), (), mismatches(found))
