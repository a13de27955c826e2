"""`codespec bench …`: the benchmarks, each a sub-command."""

from __future__ import annotations

import argparse
from typing import Any

from codespec_lab.commands.benches import (
    decode,
    divergence,
    micro,
    policy,
    prediction,
    proposers,
    quality,
    serve,
    typing,
)

BENCHES = (policy, proposers, decode, serve, typing, prediction, quality, divergence, micro)


def add_parser(commands: Any) -> None:
    """Add the command and its benchmarks."""
    parser: argparse.ArgumentParser = commands.add_parser("bench", help="measure on this machine")
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH", parser_class=type(parser))
    for bench in BENCHES:
        bench.add(benches)
