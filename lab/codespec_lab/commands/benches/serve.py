"""`codespec bench serve`: flags and entry point."""

from __future__ import annotations

import argparse
from typing import Any

from codespec.cli.options import engine_config, require_aiohttp, require_torch
from codespec.errors import ConfigError
from codespec_lab.commands.benches.flags import (
    add_llama_flag,
    add_site_flags,
    bench_parser,
    count,
    count_or_zero,
    counts,
    finish,
)


def add(benches: Any) -> None:
    """Add the command."""
    parser = bench_parser(
        benches, "serve", "a daemon under load: many clients at once, with and without speculation in turn", run
    )
    parser.add_argument("--url", default="", metavar="URL", help="a daemon that runs (default: one of its own)")
    add_site_flags(parser, "prompts instead, one JSON object a line")
    parser.add_argument("--concurrency", type=counts, default=(1, 4, 8, 16, 32), metavar="N,…", help="(1,4,8,16,32)")
    parser.add_argument("--limit", type=count, default=40, metavar="N", help="places in each of two halves (40)")
    parser.add_argument("--max-tokens", type=count, default=64, metavar="N", help="target tokens a place (64)")
    parser.add_argument("--repeats", type=count, default=1, metavar="N", help="times that all is done again (1)")
    parser.add_argument("--keystrokes", type=count_or_zero, default=32, metavar="N", help="in each of four files (32)")
    add_llama_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Run `codespec bench serve`."""
    shape = engine_config(options).target_shape
    if options.url and shape != "own":
        raise ConfigError("--url names a daemon that has its models already: leave out --shape.")
    require_torch()
    require_aiohttp()
    from codespec_lab.bench.serve.report import charts, report
    from codespec_lab.bench.serve.run import ServeBench, run_serve_bench
    from codespec_lab.bench.serve.summary import mismatches

    bench = ServeBench(
        config=engine_config(options, target_shape="own"),
        url=options.url,
        held_out=options.held_out,
        prompts=options.prompts,
        limit=options.limit,
        tokens=options.max_tokens,
        concurrency=options.concurrency,
        repeats=options.repeats,
        keystrokes=options.keystrokes,
        shape="" if shape == "own" else shape,
        llama_cpp=options.llama_cpp,
    )
    found = run_serve_bench(bench)
    return finish(options, found, report(found), charts(found), mismatches(found["daemons"]))
