"""`codespec check`: measure whether a target and a drafter work together, before any model is loaded.

`codespec.pair` makes the report. Does not import torch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec.api.config import EngineConfig
from codespec.cli.options import PAIR, add_config_option, add_flag
from codespec.cli.parser import Parser
from codespec.errors import ConfigError, PairError
from codespec.store.choice import choose
from codespec.store.resolve import resolve

if TYPE_CHECKING:
    from codespec.pair import PairReport


def add_parser(commands: Any) -> None:
    """Add the command and its flags."""
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
    """Print the report and return 0. Raise PairError after it if the pair can't work."""
    named = {name: getattr(options, name) for name in PAIR}
    config = choose(named, options.config).config
    if config.drafter == "none":
        raise ConfigError("The drafter is none, so there is no pair to check", "name one with --drafter")
    from codespec.pair import check_pair, find_sample, named_sample, read_facts

    target, drafter = (read_facts(resolve(name)) for name in (config.target, config.drafter))
    sample = named_sample(options.files) if options.files else find_sample(Path.cwd())
    report = check_pair(target, drafter, sample)
    print(json.dumps(report.as_dict(), ensure_ascii=False) if options.json else "\n".join(render(report)))
    if report.problem:
        raise PairError(report.problem)
    return 0


def render(report: PairReport) -> list[str]:
    """Return the report's lines: the text, a line for each finding, and the verdict."""
    sample = report.sample
    count = "1 file" if len(sample.texts) == 1 else f"{len(sample.texts)} files"
    lines = [f"measured on {count}, {sample.size / 1000:.0f} kB ({sample.source})", ""]
    return [*lines, *(finding.line for finding in report.findings), "", f"verdict: {report.verdict}"]
