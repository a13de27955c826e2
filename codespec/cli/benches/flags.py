"""What all benchmarks' commands have: flags, their ranges, and where figures are written. Knows no benchmark."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec.bench.mismatch import refuse_mismatches
from codespec.cli.options import add_engine_options
from codespec.cli.parser import Parser
from codespec.errors import ConfigError

if TYPE_CHECKING:
    from codespec.bench.plot import Chart


def finish(
    options: argparse.Namespace,
    found: dict[str, Any],
    lines: Sequence[str],
    charts: Sequence[Chart],
    mismatches: Sequence[str] = (),
    *,
    kept: bool = False,
) -> int:
    """Prints the lines and writes the files that were asked for; `kept`: the benchmark writes its --json itself. Raises
    MismatchError after that where texts that must be equal are not.
    """
    print("\n".join(lines))
    if options.json and not kept:
        write_json(options.json, found)
    if options.summary:
        from codespec.bench.decode_sheet import condensed

        write_json(options.summary, condensed(found))
    if options.plot:
        from codespec.bench.plot import write_plot

        write_plot(options.plot, charts)
    refuse_mismatches(mismatches)
    return 0


def bench_parser(benches: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Parser:
    """A benchmark's parser with what all of them have."""
    description = text[0].upper() + text[1:] + "."
    parser: Parser = benches.add_parser(name, help=text, usage="%(prog)s [options]", description=description)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures to this file")
    parser.add_argument("--summary", type=Path, metavar="OUT", help="the same without single passes, four digits each")
    parser.add_argument("--plot", type=Path, metavar="OUT.svg", help="draw the main figures")
    add_engine_options(parser, shape_flags=("--shape", "--target-shape"))  # no completion shapes here to mix it up with
    parser.set_defaults(run=run)
    return parser


def count(text: str, least: int = 1) -> int:
    """A whole number of `least` or more, for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of {least} or more")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Different whole numbers with commas between them, the smallest first."""
    return tuple(sorted({count(part) for part in text.split(",")}))


def count_or_none(text: str) -> int:
    """A whole number, or 0, for argparse."""
    return count(text, 0)


def write_json(file: Path, values: dict[str, Any]) -> None:
    """Figures into a file. ConfigError where it can't be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"The figures can't be written to {file} ({error.strerror}): choose another place."
        ) from error
