"""`codespec check`: whether a target and a drafter work together, measured before any model is loaded.

Knows flags; `check_table` knows the table and `codespec.pair` the rest, which are loaded when they are used. Loads no
torch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec.cli.options import add_pair_options
from codespec.errors import ConfigError, PairError

if TYPE_CHECKING:
    from codespec.pair.sample import Sample


def add_parser(commands: Any) -> None:
    """Adds the command and its flags."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "check",
        help="tell whether two models work together",
        description="Compares a target and a drafter and measures what their tokenizers cost on your own files.",
        allow_abbrev=False,
    )
    add_pair_options(parser)
    parser.add_argument(
        "--files", type=Path, nargs="+", metavar="FILE", help="text to measure on (default: source files here)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the report and returns 0; raises PairError behind it if the pair can't work."""
    from codespec.pair.choice import resolve

    named = {name: getattr(options, name) for name in ("model", "target", "drafter")}
    config = resolve(named, options.config)
    if config.drafter == "none":
        raise ConfigError("The drafter is none, so there is no pair to check: name one with --drafter.")
    from codespec.cli.check_table import render
    from codespec.pair.facts import read_facts
    from codespec.pair.report import check_pair

    target, drafter = read_facts(config.target), read_facts(config.drafter)
    report = check_pair(target, drafter, choose_sample(options.files))
    if options.json:
        print(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        print("\n".join(render(report)))
    if report.problem:
        raise PairError(report.problem)
    return 0


def choose_sample(files: Sequence[Path] | None) -> Sample:
    """The named files, else the source files here, else parts of the standard library that no shipped model saw."""
    from codespec.pair.sample import LEAST_BYTES, library_sample, named_sample, own_sample

    if files:
        return named_sample(files)
    own = own_sample(Path.cwd())
    if own.size >= LEAST_BYTES:
        return own
    from codespec.corpus.sources import held_out_files

    return library_sample(held_out_files())
