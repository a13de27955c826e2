"""`codespec bench policy`: flags and entry point."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codespec.cli.options import engine_config, require_torch
from codespec_lab.commands.benches.flags import (
    add_site_flags,
    bench_parser,
    count,
    count_or_zero,
    finish,
    refuse_two_sources,
)


def add(benches: Any) -> None:
    """Add the command."""
    parser = bench_parser(
        benches,
        "policy",
        "how far to guess: every draft-length policy on the same recorded completions",
        run,
    )
    add_site_flags(parser, "prompts instead, one JSON object a line")
    parser.add_argument(
        "--costs", type=Path, metavar="FILE", help="price by the tables of an earlier run's --json file"
    )
    parser.add_argument("--limit", type=count, default=24, metavar="N", help="places a language (24)")
    parser.add_argument("--max-tokens", type=count, default=64, metavar="N", help="target tokens a place (64)")
    parser.add_argument(
        "--measure", type=count_or_zero, default=12, metavar="N", help="places timed by the real engine (12)"
    )


def run(options: argparse.Namespace) -> int:
    """Run `codespec bench policy`."""
    refuse_two_sources(options)
    shape = engine_config(options).target_shape
    config = engine_config(options, target_shape="own")
    require_torch()
    from codespec_lab.bench.policy.report import charts, report
    from codespec_lab.bench.policy.run import PolicyBench, run_policy_bench
    from codespec_lab.bench.policy.summary import mismatches

    bench = PolicyBench(
        config=config,
        held_out=options.held_out,
        prompts=options.prompts,
        limit=options.limit,
        tokens=options.max_tokens,
        measured=options.measure,
        costs=options.costs,
        shape="" if shape == "own" else shape,
    )
    found = run_policy_bench(bench)
    return finish(options, found, report(found), charts(found), mismatches(found["tables"]))
