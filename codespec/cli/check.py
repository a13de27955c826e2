"""`codespec check`: report whether a target and a drafter work together. `codespec.pair` creates the report."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from codespec.api.config import EngineConfig
from codespec.cli.options import PAIR, Parser, add_config_option, add_flag
from codespec.errors import ConfigError, PairError
from codespec.store.choice import choose
from codespec.store.resolve import resolve


def add_parser(commands: Any) -> None:
    parser: Parser = commands.add_parser(
        "check",
        help="check whether two models work together",
        description="Compares a target and a drafter and measures the cost of their tokenizers on your own files.",
    )
    add_config_option(parser)
    for name in PAIR:
        add_flag(parser, parser, EngineConfig, name)
    parser.add_argument(
        "--files", type=Path, nargs="+", metavar="FILE", help="text to measure on (default: source files here)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report and return 0. If the models can't work together, raise PairError after printing the report."""
    config = choose({name: getattr(options, name) for name in PAIR}, options.config).config
    if config.drafter == "none":
        raise ConfigError(
            "No drafter is selected, so there is no pair to check", "name a drafter with `--drafter NAME`"
        )
    from codespec.pair import check_pair, find_sample, named_sample, read_facts

    target, drafter = (read_facts(resolve(name)) for name in (config.target, config.drafter))
    sample = named_sample(options.files) if options.files else find_sample(Path.cwd())
    report = check_pair(target, drafter, sample)
    if options.json:
        print(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        files = "1 file" if len(sample.texts) == 1 else f"{len(sample.texts)} files"
        print(f"measured on {files}, {sample.size / 1000:.0f} kB ({sample.source})\n")
        print(*(finding.line for finding in report.findings), sep="\n")
        print(f"\nverdict: {report.verdict}")
    if report.problem:
        raise PairError(report.problem)
    return 0
