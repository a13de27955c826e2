"""`codespec bench step`. Knows its flags."""

from __future__ import annotations

import argparse
from typing import Any

from codespec.cli.benches.flags import bench_parser, count, count_or_none, counts, finish
from codespec.cli.options import engine_config, require_torch
from codespec.errors import ConfigError


def add(benches: Any) -> None:
    """Adds the command."""
    parser = bench_parser(
        benches,
        "step",
        "what a step costs against the memory's bandwidth, and exact against fast: random weights of a real model's "
        "shape",
        run,
    )
    parser.add_argument("--dtypes", default="float32,bfloat16", metavar="D,…", help="(float32,bfloat16)")
    parser.add_argument("--widths", type=counts, default=(1, 2, 4, 8, 16, 32), metavar="N,…", help="rows of a sequence")
    parser.add_argument("--batches", type=counts, default=(1, 2, 4, 8, 16), metavar="N,…", help="sequences at once")
    parser.add_argument("--contexts", type=counts, default=(64, 1024), metavar="N,…", help="tokens before them")
    parser.add_argument(
        "--prompt",
        type=count_or_none,
        default=512,
        metavar="N",
        help="tokens of a prompt that is read too (512; 0: none)",
    )
    parser.add_argument("--grid", action="store_true", help="every width with every batch, not only with one")
    parser.add_argument("--sweeps", type=count, default=7, metavar="N", help="times that all is measured (7)")


def run(options: argparse.Namespace) -> int:
    """Runs `codespec bench step`."""
    config = engine_config(options, target_shape="own")
    shape = engine_config(options).target_shape
    kinds = tuple(options.dtypes.split(","))
    if options.dtype or not set(kinds) <= {"float32", "bfloat16", "float16"}:
        raise ConfigError("bench step takes --dtypes float32, bfloat16 and float16, one or more with commas.")
    require_torch()
    from codespec.bench.step import StepBench, run_step_bench
    from codespec.bench.step_report import charts, report

    bench = StepBench(
        config=config,
        shape="qwen2.5-0.5b" if shape == "own" else shape,
        dtypes=kinds,
        widths=options.widths,
        batches=options.batches,
        contexts=options.contexts,
        sweeps=options.sweeps,
        grid=options.grid,
        prompt=options.prompt,
    )
    found = run_step_bench(bench)
    return finish(options, found, report(found), charts(found))
