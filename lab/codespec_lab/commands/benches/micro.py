"""The microbenchmarks `codespec bench step` and `codespec bench sampling`: flags and entry points."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codespec.cli.options import engine_config, require_torch
from codespec.errors import ConfigError
from codespec_lab.commands.benches.flags import bench_parser, count, count_or_zero, counts, finish


def add(benches: Any) -> None:
    """Add both commands."""
    _add_step(benches)
    _add_sampling(benches)


def _add_step(benches: Any) -> None:
    parser = bench_parser(
        benches,
        "step",
        "what a step costs against the memory's bandwidth, and exact against fast: of a model that is here, or of "
        "random weights of a real model's shape",
        run_step,
    )
    parser.add_argument("--dtypes", default="float32,bfloat16", metavar="D,…", help="(float32,bfloat16)")
    parser.add_argument("--widths", type=counts, default=(1, 2, 4, 8, 16, 32), metavar="N,…", help="rows of a sequence")
    parser.add_argument("--batches", type=counts, default=(1, 2, 4, 8, 16), metavar="N,…", help="sequences at once")
    parser.add_argument("--contexts", type=counts, default=(64, 1024), metavar="N,…", help="tokens before them")
    parser.add_argument(
        "--prompt",
        type=count_or_zero,
        default=512,
        metavar="N",
        help="tokens of a prompt that is read too (512; 0: none)",
    )
    parser.add_argument("--grid", action="store_true", help="every width with every batch, not only with one")
    parser.add_argument("--sweeps", type=count, default=7, metavar="N", help="times that all is measured (7)")


def _add_sampling(benches: Any) -> None:
    parser = bench_parser(
        benches,
        "sampling",
        "how to draft for sampled text: the target's own noise, greedy drafts, rejection",
        run_sampling,
    )
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts, one JSON object a line")
    parser.add_argument("--limit", type=count, default=12, metavar="N", help="prompts (12)")
    parser.add_argument("--max-tokens", type=count, default=48, metavar="N", help="target tokens a prompt (48)")


def run_step(options: argparse.Namespace) -> int:
    """Run `codespec bench step`."""
    config = engine_config(options, target_shape="own")
    shape = engine_config(options).target_shape
    named = shape == "own" and bool(options.model or options.target)
    kinds, known = tuple(options.dtypes.split(",")), {"float32", "bfloat16", "float16"} | ({"int8"} if named else set())
    if options.dtype or not set(kinds) <= known:
        raise ConfigError(
            "bench step takes --dtypes float32, bfloat16 and float16, one or more with commas, and int8 of a --model "
            "or --target."
        )
    require_torch()
    from codespec_lab.bench.step.report import charts, report
    from codespec_lab.bench.step.run import StepBench, run_step_bench

    bench = StepBench(
        config=config,
        shape="" if named else "qwen2.5-0.5b" if shape == "own" else shape,
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


def run_sampling(options: argparse.Namespace) -> int:
    """Run `codespec bench sampling`."""
    if options.plot:
        raise ConfigError("bench sampling draws no figures: leave out --plot.")
    require_torch()
    from codespec_lab.bench.sampling import SamplingBench, mismatches, report, run_sampling_bench
    from codespec_lab.bench.sites import read_prompts, stdlib_sites

    sites = read_prompts(options.prompts)[: options.limit] if options.prompts else stdlib_sites(options.limit)
    found = run_sampling_bench(SamplingBench(engine_config(options), sites, tokens=options.max_tokens))
    return finish(options, found, report(found), (), mismatches(found))
