"""`codespec bench prediction`: flags and entry point."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codespec.cli.options import engine_config, require_torch
from codespec_lab.commands.benches.flags import bench_parser, count, finish


def add(benches: Any) -> None:
    """Add the command."""
    parser = bench_parser(
        benches, "prediction", "a file written again with small edits: what the client's own guess at it saves", run
    )
    parser.add_argument("--held-out", type=Path, metavar="FILE", help="held-out projects (default: the work folder's)")
    parser.add_argument("--limit", type=count, default=4, metavar="N", help="files (4)")
    parser.add_argument("--lines", type=count, default=200, metavar="N", help="lines of each (200)")
    parser.add_argument("--repeats", type=count, default=3, metavar="N", help="passes over all (3)")


def run(options: argparse.Namespace) -> int:
    """Run `codespec bench prediction`."""
    require_torch()
    from codespec_lab.bench.prediction.report import charts, report
    from codespec_lab.bench.prediction.run import PredictionBench, run_prediction_bench

    bench = PredictionBench(
        config=engine_config(options),
        held_out=options.held_out,
        limit=options.limit,
        lines=options.lines,
        repeats=options.repeats,
    )
    found = run_prediction_bench(bench)
    return finish(options, found, report(found), charts(found), found["mismatches"])
