"""`codespec bench …`: the benchmarks, each a sub-command. Knows flags, their ranges, and where results are written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from codespec.cli.options import add_engine_options, engine_config, require_torch
from codespec.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Adds the command and its benchmarks."""
    parser: argparse.ArgumentParser = commands.add_parser("bench", help="measure on this machine")
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH", parser_class=type(parser))
    for add in BENCHES:
        add(benches)


def _add_policy(benches: Any) -> None:
    parser = _parser(
        benches,
        "policy",
        "how far to guess: every draft-length policy on the same recorded completions",
        run_policy,
    )
    parser.add_argument("--held-out", type=Path, metavar="FILE", help="held-out projects (default: the work folder's)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts instead, one JSON object a line")
    parser.add_argument(
        "--costs", type=Path, metavar="FILE", help="price by the tables of an earlier run's --json file"
    )
    parser.add_argument("--limit", type=_count, default=24, metavar="N", help="places a language (24)")
    parser.add_argument("--max-tokens", type=_count, default=64, metavar="N", help="target tokens a place (64)")
    parser.add_argument(
        "--measure", type=_count_or_none, default=12, metavar="N", help="places timed by the real engine (12)"
    )


def run_policy(options: argparse.Namespace) -> int:
    """Runs `codespec bench policy`."""
    if options.held_out and options.prompts:
        raise ConfigError("--held-out and --prompts name two sets of places: give one of them.")
    shape = engine_config(options).target_shape
    config = engine_config(options, target_shape="own")
    require_torch()
    from codespec.bench.policy import PolicyBench, run_policy_bench
    from codespec.bench.policy_report import charts, report

    bench = PolicyBench(
        config=config,
        held_out=options.held_out,
        prompts=options.prompts,
        limit=options.limit,
        tokens=options.max_tokens,
        measured=options.measure,
        costs=options.costs,
        shape="" if shape == "own" else shape,
    )
    found = run_policy_bench(bench)
    print("\n".join(report(found)))
    if options.json:
        _write_json(options.json, found)
    if options.plot:
        from codespec.bench.plot import write_plot

        write_plot(options.plot, charts(found))
    return 0


BENCHES = (_add_policy,)


def _parser(benches: Any, name: str, told: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    """A benchmark's parser with what all of them have."""
    parser: argparse.ArgumentParser = benches.add_parser(name, help=told, description=told[0].upper() + told[1:] + ".")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures to this file")
    parser.add_argument("--plot", type=Path, metavar="OUT.svg", help="draw the main figures")
    add_engine_options(parser, shape_flags=("--shape", "--target-shape"))  # no completion shapes here to mix it up with
    parser.set_defaults(run=run)
    return parser


def _count(text: str, least: int = 1) -> int:
    """A whole number of `least` or more, for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of {least} or more")
    return int(text)


def _count_or_none(text: str) -> int:
    return _count(text, 0)


def _write_json(file: Path, values: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"The figures can't be written to {file} ({error.strerror}): choose another place."
        ) from error
