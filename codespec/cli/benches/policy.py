"""`codespec bench policy`. Knows its flags."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codespec.cli.benches.flags import bench_parser, count, count_or_none, finish
from codespec.cli.options import engine_config, require_torch
from codespec.errors import ConfigError


def add(benches: Any) -> None:
    """Adds the command."""
    parser = bench_parser(
        benches,
        "policy",
        "how far to guess: every draft-length policy on the same recorded completions",
        run,
    )
    parser.add_argument("--held-out", type=Path, metavar="FILE", help="held-out projects (default: the work folder's)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts instead, one JSON object a line")
    parser.add_argument(
        "--costs", type=Path, metavar="FILE", help="price by the tables of an earlier run's --json file"
    )
    parser.add_argument("--limit", type=count, default=24, metavar="N", help="places a language (24)")
    parser.add_argument("--max-tokens", type=count, default=64, metavar="N", help="target tokens a place (64)")
    parser.add_argument(
        "--measure", type=count_or_none, default=12, metavar="N", help="places timed by the real engine (12)"
    )


def run(options: argparse.Namespace) -> int:
    """Runs `codespec bench policy`."""
    if options.held_out and options.prompts:
        raise ConfigError("--held-out and --prompts name two sets of places: give one of them.")
    shape = engine_config(options).target_shape
    config = engine_config(options, target_shape="own")
    require_torch()
    from codespec.bench.policy import PolicyBench, run_policy_bench
    from codespec.bench.policy_report import charts, report
    from codespec.bench.policy_summary import mismatches

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
