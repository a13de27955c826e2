"""`codespec bench divergence`: flags and entry point."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codespec.cli.options import SETTINGS, add_pair_options, engine_config, require_torch
from codespec.cli.options import count as threads
from codespec.cli.parser import Parser
from codespec.config import DTYPES, MODES
from codespec_lab.commands.benches.flags import count, finish

DESCRIPTION = "how far a number format moves a target's predictions on held-out code: KL divergence, first choice, loss"


def add(benches: Any) -> None:
    """Add the command."""
    description = f"{DESCRIPTION[0].upper()}{DESCRIPTION[1:]}."
    parser: Parser = benches.add_parser(
        "divergence", help=DESCRIPTION, usage="%(prog)s --dtype FORMAT [options]", description=description
    )
    option = parser.add_argument
    option("--dtype", dest="candidate", choices=DTYPES, required=True, help="the number format to judge")
    option("--against", choices=DTYPES, default="float32", help="the reference (float32)")
    option("--tokens", type=count, default=20_000, metavar="N", help="predicted tokens, about (20000)")
    option(
        "--files",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="the texts (default: the standard library's held-out modules)",
    )
    option("--json", type=Path, metavar="OUT", help="write all figures to this file")
    group = parser.add_argument_group("the model (also CODESPEC_* variables and --config)")
    add_pair_options(parser, group)
    group.add_argument("--device", help="auto, cpu or cuda (default cpu)")
    group.add_argument("--mode", choices=MODES, help="how products are computed: exact (default) or fast")
    group.add_argument("--threads", type=threads, metavar="N", help="CPU threads (default: as many as torch uses)")
    parser.set_defaults(run=run, plot=None, summary=None)


def run(options: argparse.Namespace) -> int:
    """Run `codespec bench divergence`."""
    for name in SETTINGS:
        vars(options).setdefault(name, None)
    config = engine_config(options)
    require_torch()
    from codespec_lab.bench.divergence import DivergenceBench, report, run_divergence_bench

    bench = DivergenceBench(
        config=config,
        dtype=options.candidate,
        against=options.against,
        tokens=options.tokens,
        files=options.files,
    )
    found = run_divergence_bench(bench)
    return finish(options, found, report(found), ())
