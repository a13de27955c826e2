"""`codespec bench sampling`. Knows its flags."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codespec.cli.benches.flags import bench_parser, count, finish
from codespec.cli.options import engine_config, require_torch
from codespec.errors import ConfigError


def add(benches: Any) -> None:
    """Adds the command."""
    parser = bench_parser(
        benches,
        "sampling",
        "how to draft for sampled text: the target's own noise, greedy drafts, rejection",
        run,
    )
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts, one JSON object a line")
    parser.add_argument("--limit", type=count, default=12, metavar="N", help="prompts (12)")
    parser.add_argument("--max-tokens", type=count, default=48, metavar="N", help="target tokens a prompt (48)")


def run(options: argparse.Namespace) -> int:
    """Runs `codespec bench sampling`."""
    if options.plot:
        raise ConfigError("bench sampling draws no figures: leave out --plot.")
    require_torch()
    from codespec.bench.prompts import read_prompts, stdlib_prompts
    from codespec.bench.sampling import SamplingBench, mismatches, report, run_sampling_bench

    prompts = read_prompts(options.prompts)[: options.limit] if options.prompts else stdlib_prompts(options.limit)
    found = run_sampling_bench(SamplingBench(engine_config(options), prompts, tokens=options.max_tokens))
    return finish(options, found, report(found), (), mismatches(found))
