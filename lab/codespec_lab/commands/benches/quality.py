"""`codespec bench quality`: flags and entry point."""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from codespec.cli.options import add_engine_options, engine_config, require_torch
from codespec.cli.parser import Parser
from codespec.config import DTYPES
from codespec_lab.commands.benches.flags import count, count_or_zero, finish

KINDS = ("single-line", "multi-line", "random-span", "line", "block")
DESCRIPTION = (
    "how good: one line, several lines or any span cut out of HumanEval's solutions and of held-out projects, "
    "filled in by a target, or by several side by side"
)


def add(benches: Any) -> None:
    """Add the command."""
    description = f"{DESCRIPTION[0].upper()}{DESCRIPTION[1:]}. Decoded plainly: a drafter changes no text."
    parser: Parser = benches.add_parser(
        "quality", help=DESCRIPTION, usage="%(prog)s [options]", description=description
    )
    option, rare = parser.add_argument, partial(parser.add_rare, parser)
    option("--compare", nargs="+", default=[], metavar="PATH|HUB_ID", help="other targets, on the same sites")
    option("--prompts", type=Path, metavar="FILE", help="HumanEval's file (.jsonl or .jsonl.gz)")
    option("--held-out", type=Path, metavar="FILE", help="held-out projects (default: the work folder's)")
    rare(
        "--kinds",
        type=kinds,
        metavar="KIND,…",
        help=f"only these: {', '.join(KINDS[:3])} of HumanEval, {', '.join(KINDS[3:])} of held-out projects",
    )
    rare("--seed", type=count_or_zero, default=11, metavar="N", help="which sites the rule takes (11)")
    rare("--each", type=count, metavar="N", help="sites of each kind in a HumanEval problem (1; infilling: all)")
    rare("--limit", type=count, metavar="N", help="HumanEval problems, and sites a language and kind")
    option("--sample", type=count, metavar="N", help="at most N sites of each kind, drawn by the seed")
    option(
        "--shape",
        choices=("editor", "raw", "infilling"),
        default="editor",
        help="editor: healed, and ended where the line or block ends; raw: the target's own tokens up to its end "
        "token; infilling: HumanEval-Infilling's sites and rules (8,488 sites: add --sample)",
    )
    option("--formats", type=formats, default=(), metavar="FORMAT,…", help="the target in these number formats too")
    rare(
        "--llama-server",
        default="",
        metavar="URL",
        help="a running llama-server with the same model as a contestant, on the same prompt ids (--shape infilling)",
    )
    rare("--left-only", action="store_true", help="leave out the text after the cursor")
    rare(
        "--definitions",
        action="store_true",
        help="fill gaps in held-out code twice, the second time with what the file's imports define in the prompt",
    )
    option(
        "--execute",
        action="store_true",
        help="run HumanEval's tests on what was written (pass@1). This runs code that a model wrote, on this machine: "
        "limits stop accidents, not an attacker; use a container where that matters",
    )
    option("--json", type=Path, metavar="OUT", help="write all figures to this file")
    add_engine_options(parser)
    parser.set_defaults(run=run, plot=None, summary=None)


def kinds(text: str) -> tuple[str, ...]:
    """Parse comma-separated kinds of sites into the report's order, for argparse."""
    named = text.split(",")
    unknown = [name for name in named if name not in KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in named)


def formats(text: str) -> tuple[str, ...]:
    """Parse comma-separated number formats, for argparse."""
    unknown = [name for name in text.split(",") if name not in DTYPES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(DTYPES)}")
    return tuple(text.split(","))


def run(options: argparse.Namespace) -> int:
    """Run `codespec bench quality`."""
    config = engine_config(options)
    require_torch()
    from codespec_lab.bench.quality.report import report
    from codespec_lab.bench.quality.run import QualityBench, run_quality_bench

    bench = QualityBench(
        config=config,
        compare=options.compare,
        prompts=options.prompts,
        held_out=options.held_out,
        kinds=options.kinds,
        seed=options.seed,
        each=options.each or 0,
        limit=options.limit or 0,
        sample=options.sample or 0,
        formats=options.formats,
        llama_server=options.llama_server,
        shape=options.shape,
        left_only=options.left_only,
        definitions=options.definitions,
        execute=options.execute,
        command=command_line(options),
    )
    found = run_quality_bench(bench)
    return finish(options, found, report(found), ())


def command_line(options: argparse.Namespace) -> str:
    """Return the user's command line without this machine's folders and without the output file."""
    words = ["codespec", "bench", "quality"]
    for name, value in vars(options).items():
        unset = value is None or value is False or value in ([], (), "")
        if unset or name in ("run", "json", "plot", "command", "bench"):
            continue
        flag = f"--{name.replace('_', '-')}"
        values = value if isinstance(value, list) else [",".join(value) if isinstance(value, tuple) else value]
        words += [flag] if value is True else [flag, *(_without_folder(one) for one in values)]
    return shlex.join(words)


def _without_folder(value: object) -> str:
    text = str(value)
    return PurePath(text).name if isinstance(value, Path) or PurePath(text).is_absolute() else text
