"""`codespec bench …`: the benchmarks, each a sub-command. Knows flags, their ranges, and where results are written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from codespec.cli.options import add_engine_options, engine_config, require_aiohttp, require_torch
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


def _add_decode(benches: Any) -> None:
    parser = _parser(
        benches,
        "decode",
        "how fast: codespec and its peers on the same prompts and weights, in turn; the --json file is gone on with",
        run_decode,
    )
    parser.add_argument("--held-out", type=Path, metavar="FILE", help="held-out projects (default: the work folder's)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts instead, one JSON object a line")
    parser.add_argument("--limit", type=_count, metavar="N", help="prompts whose text is no loop (64; 6 with --shape)")
    parser.add_argument("--tokens", type=_count, metavar="N", help="target tokens a prompt (128; 64 with --shape)")
    parser.add_argument("--repeats", type=_count, default=5, metavar="N", help="passes over every cell (5)")
    parser.add_argument(
        "--concurrency", type=_counts, metavar="N,…", help="prompts at once (1,4,8,16; 1,8,16 with --shape)"
    )
    parser.add_argument("--sampling", choices=("greedy", "sampled"), help="only this (with --shape: greedy)")
    parser.add_argument("--minutes", type=_count, metavar="N", help="begin no pass that would end later than this")


def run_decode(options: argparse.Namespace) -> int:
    """Runs `codespec bench decode`."""
    if options.held_out and options.prompts:
        raise ConfigError("--held-out and --prompts name two sets of prompts: give one of them.")
    if options.dtype or options.drafter_dtype or options.threads is not None or options.mode:
        raise ConfigError("bench decode finds everybody's fastest dtype and threads: leave out --dtype and --threads.")
    require_torch()
    from codespec.bench.decode import DecodeBench, run_decode_bench
    from codespec.bench.decode_report import charts, report

    bench = DecodeBench(
        config=engine_config(options),
        held_out=options.held_out,
        prompts=options.prompts,
        file=options.json,
        limit=options.limit,
        tokens=options.tokens,
        concurrency=options.concurrency,
        samplings=(options.sampling,) if options.sampling else None,
        repeats=options.repeats,
        minutes=options.minutes,
    )
    found = run_decode_bench(bench)
    print("\n".join(report(found)))
    if options.plot:
        from codespec.bench.plot import write_plot

        write_plot(options.plot, charts(found))
    return 0


def _add_serve(benches: Any) -> None:
    parser = _parser(
        benches, "serve", "a daemon under load: many clients at once, with and without speculation in turn", run_serve
    )
    parser.add_argument("--url", default="", metavar="URL", help="a daemon that runs (default: one of its own)")
    parser.add_argument("--held-out", type=Path, metavar="FILE", help="held-out projects (default: the work folder's)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts instead, one JSON object a line")
    parser.add_argument("--concurrency", type=_counts, default=(1, 4, 8, 16, 32), metavar="N,…", help="(1,4,8,16,32)")
    parser.add_argument("--limit", type=_count, default=40, metavar="N", help="places in each of two halves (40)")
    parser.add_argument("--max-tokens", type=_count, default=64, metavar="N", help="target tokens a place (64)")
    parser.add_argument("--repeats", type=_count, default=1, metavar="N", help="times that all is done again (1)")
    parser.add_argument("--keystrokes", type=_count_or_none, default=32, metavar="N", help="in each of four files (32)")


def run_serve(options: argparse.Namespace) -> int:
    """Runs `codespec bench serve`."""
    shape = engine_config(options).target_shape
    if options.url and shape != "own":
        raise ConfigError("--url names a daemon that has its models already: leave out --shape.")
    require_torch()
    require_aiohttp()
    from codespec.bench.serve import ServeBench, run_serve_bench
    from codespec.bench.serve_report import charts, report

    bench = ServeBench(
        config=engine_config(options, target_shape="own"),
        url=options.url,
        held_out=options.held_out,
        prompts=options.prompts,
        limit=options.limit,
        tokens=options.max_tokens,
        concurrency=options.concurrency,
        repeats=options.repeats,
        keystrokes=options.keystrokes,
        shape="" if shape == "own" else shape,
    )
    found = run_serve_bench(bench)
    print("\n".join(report(found)))
    if options.json:
        _write_json(options.json, found)
    if options.plot:
        from codespec.bench.plot import write_plot

        write_plot(options.plot, charts(found))
    return 0


def _add_sampling(benches: Any) -> None:
    parser = _parser(
        benches,
        "sampling",
        "how to draft for sampled text: the target's own luck, greedy drafts, rejection",
        run_sampling,
    )
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts, one JSON object a line")
    parser.add_argument("--limit", type=_count, default=12, metavar="N", help="prompts (12)")
    parser.add_argument("--max-tokens", type=_count, default=48, metavar="N", help="target tokens a prompt (48)")


def run_sampling(options: argparse.Namespace) -> int:
    """Runs `codespec bench sampling`."""
    if options.plot:
        raise ConfigError("bench sampling draws no figures: leave out --plot.")
    require_torch()
    from codespec.bench.prompts import read_prompts, stdlib_prompts
    from codespec.bench.sampling import SamplingBench, report, run_sampling_bench

    prompts = read_prompts(options.prompts)[: options.limit] if options.prompts else stdlib_prompts(options.limit)
    found = run_sampling_bench(SamplingBench(engine_config(options), prompts, tokens=options.max_tokens))
    print("\n".join(report(found)))
    if options.json:
        _write_json(options.json, found)
    return 0


BENCHES = (_add_policy, _add_decode, _add_serve, _add_sampling)


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


def _counts(text: str) -> tuple[int, ...]:
    """Different whole numbers with commas between them, the smallest first."""
    return tuple(sorted({_count(part) for part in text.split(",")}))


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
