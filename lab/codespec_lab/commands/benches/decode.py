"""`codespec bench decode`: flags and entry point."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codespec.cli.options import engine_config, require_torch
from codespec.errors import ConfigError
from codespec_lab.commands.benches.flags import add_llama_flag, add_site_flags, bench_parser, count, counts, finish


def add(benches: Any) -> None:
    """Add the command."""
    parser = bench_parser(
        benches,
        "decode",
        "how fast: codespec and its peers on the same prompts and weights, in turn; a later run continues the file",
        run,
    )
    parser.epilog = "Everybody runs in the fastest number format; --dtype sets codespec's alone."
    add_site_flags(parser, "prompts, one JSON object a line; with --held-out half of each")
    parser.add_argument(
        "--limit", type=count, default=24, metavar="N", help="prompts a cell (24; twice as many as run at once)"
    )
    parser.add_argument("--tokens", type=count, default=128, metavar="N", help="target tokens a text at most (128)")
    parser.add_argument("--repeats", type=count, default=3, metavar="N", help="passes over every cell (3)")
    parser.add_argument(
        "--concurrency", type=counts, default=(1, 4, 8, 16), metavar="N,…", help="prompts at once (1,4,8,16)"
    )
    parser.add_argument("--sampling", choices=("greedy", "sampled"), help="only this (default: both)")
    add_llama_flag(parser)
    parser.add_argument(
        "--openvino",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="the target as `optimum-cli export openvino` converts it; may be given several times",
    )
    parser.add_rare(parser, "--openvino-drafter", type=Path, metavar="FOLDER", help="a draft model for it")
    parser.add_argument("--minutes", type=count, metavar="N", help="begin no pass that would end later than this")


def run(options: argparse.Namespace) -> int:
    """Run `codespec bench decode`."""
    if options.threads is not None or options.mode:
        raise ConfigError("bench decode finds the fastest threads, in exact mode: leave out --threads and --mode.")
    require_torch()
    from codespec_lab.bench.decode.report import charts, report
    from codespec_lab.bench.decode.run import DecodeBench, run_decode_bench
    from codespec_lab.bench.decode.summary import mismatches
    from codespec_lab.bench.decode.tasks import SAMPLINGS

    bench = DecodeBench(
        config=engine_config(options),
        dtype=options.dtype or "",
        drafter_dtype=options.drafter_dtype or "",
        held_out=options.held_out,
        prompts=options.prompts,
        file=options.json,
        limit=options.limit,
        tokens=options.tokens,
        concurrency=options.concurrency,
        samplings=(options.sampling,) if options.sampling else tuple(SAMPLINGS),
        repeats=options.repeats,
        minutes=options.minutes,
        llama_cpp=options.llama_cpp,
        openvino=tuple(options.openvino),
        openvino_drafter=options.openvino_drafter,
    )
    found = run_decode_bench(bench)
    return finish(options, found, report(found), charts(found), mismatches(found), kept=True)
