"""`codespec train`: corpus, tokenizers and models of a user's own pair. Flags and their ranges.

Imports no torch, so `codespec --help` stays fast.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from codespec.api.config import MAX_THREADS, SHIPPED
from codespec.cli.options import require_torch
from codespec.errors import ConfigError
from codespec_lab.bench.flags import count

MODELS = ("drafter", "target", "qwen-drafter")


def add_parser(commands: Any) -> None:
    """Add the command and its sub-commands."""
    parser: argparse.ArgumentParser = commands.add_parser("train", help="train a target and a drafter")
    add_train_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run a training step."""
    check_ranges(options)
    require_torch()
    from codespec_lab.training.command import run_train

    return run_train(options)


def check_ranges(options: argparse.Namespace) -> None:
    """Raise ConfigError for the first number that is out of range."""
    flags = vars(options)
    if not 1 <= flags.get("threads", 1) <= MAX_THREADS:
        raise ConfigError(f"--threads {flags['threads']} is out of range: choose 1 to {MAX_THREADS}.")
    if flags.get("steps", 0) < 0:
        raise ConfigError(f"--steps {flags['steps']} is out of range: choose 1 or more, or 0 for a budget in minutes.")
    if not 0 < flags.get("minutes", 1) < math.inf:
        raise ConfigError(f"--minutes {flags['minutes']} is out of range: it must be above 0.")


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `codespec train` to its parser."""
    parser.add_argument("--work", type=Path, default=Path(".train"), help="folder for all work files (.train)")
    actions = parser.add_subparsers(dest="action", required=True)
    corpus = actions.add_parser("corpus", help="collect permissively licensed source from installed packages")
    _add_corpus_arguments(corpus)
    actions.add_parser("tokenizers", help="train both tokenizers on a sample of the corpus")
    cut = actions.add_parser("cut-tokenizer", help="make the qwen-drafter's tokenizer: the tokens that code uses most")
    cut.add_argument(
        "model", metavar="MODEL", help="the model with the tokens: a name of the catalogue, a folder or a .gguf file"
    )
    pretrain = actions.add_parser("pretrain", help="train one model")
    pretrain.add_argument("name", choices=MODELS)
    pretrain.add_argument("--minutes", type=float, default=60.0, help="budget in minutes of working time (60)")
    pretrain.add_argument("--steps", type=int, default=0, help="budget in steps; a resumed run then repeats exactly")
    pretrain.add_argument("--rate", type=float, default=1.0, metavar="TIMES", help="the recipe's learning rates (1)")
    pretrain.add_argument("--distill-data", action="store_true", help="half of the samples are texts the target wrote")
    distill = actions.add_parser("distill-data", help="have a target write texts for its drafter")
    _add_distill_arguments(distill)
    _add_adapt_arguments(actions.add_parser("adapt", help="teach a causal model to fill in the middle (LoRA)"))
    _add_eval_arguments(actions.add_parser("eval", help="measure a pair on held-out code"))
    begin = pretrain.add_mutually_exclusive_group()
    begin.add_argument(
        "--layers", type=Path, metavar="FOLDER", help="a model to take the layers of; its tokens are others"
    )
    begin.add_argument("--start", type=Path, metavar="FOLDER", help="a model to begin from; its tokenizer is used")
    pretrain.add_argument("--out", type=Path, default=SHIPPED, help="where the finished model folder goes")
    pretrain.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    _add_machine(pretrain, threads=2)


def _add_corpus_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fetch", action="store_true", help="download the packages of the list from their registries")
    parser.add_argument(
        "--list",
        type=Path,
        metavar="FILE.toml",
        help="packages by registry, held-out projects, megabytes by language (default: the starter pair's)",
    )
    parser.add_argument(
        "--site-packages",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="installed Python packages to read (more than once)",
    )
    parser.add_argument("--node-modules", type=Path, action="append", default=[], metavar="FOLDER")
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="fail if this package is missing or its licence is unclear",
    )


def _add_distill_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", default=str(SHIPPED / "target"), metavar="PATH|HUB_ID", help="the model that writes")
    add("--positions", type=count, default=10_000, metavar="N", help="positions of the corpus (10,000)")
    add("--minutes", type=float, default=600.0, help="stop after this time and keep the texts so far (600)")
    _add_machine(parser, threads=1)


def _add_adapt_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a name of the catalogue, a folder, a .gguf file or a hub id; tied embeddings")
    add("--out", type=Path, required=True, metavar="FOLDER", help="where to write the adapter, in peft's layout")
    add("--rank", type=count, default=32, metavar="N", help="LoRA's rank, on all linear layers (32)")
    add("--rate", type=float, default=1.5e-3, metavar="R", help="the peak learning rate (0.0015)")
    add("--rows", type=count, default=6, metavar="N", help="rows a step (6)")
    add("--length", type=count, default=256, metavar="N", help="tokens a row (256)")
    add("--minutes", type=float, default=100.0, help="budget in minutes of working time (100)")
    add("--steps", type=int, default=0, help="budget in steps; a resumed run then sees the same data")
    add("--start", type=Path, metavar="FOLDER", help="an adapter to begin from, of the same model and rank")
    add("--sentinels", type=_names, default=(), metavar="A,B,C,D", help="tokens for prefix, suffix, middle and end")
    add("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="of the model (auto: the faster)")
    add("--resume", action="store_true", help="continue from the checkpoint")
    _add_machine(parser, threads=2)


def _add_machine(parser: argparse.ArgumentParser, *, threads: int, seed: str | None = None) -> None:
    parser.add_argument("--seed", type=int, default=0, help=seed)
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def _names(text: str) -> tuple[str, ...]:
    """Parse comma-separated names for argparse."""
    return tuple(filter(None, text.split(",")))


def _add_eval_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", default=str(SHIPPED / "target"), metavar="PATH|HUB_ID", help="the model that decides")
    add("--drafter", default=str(SHIPPED / "drafter"), metavar="PATH|HUB_ID|none", help="the model that drafts")
    add("--compare", nargs=2, metavar=("TARGET", "DRAFTER"), help="an older pair to compare with, measured first")
    add("--corpus-held", type=Path, metavar="FILE", help="held-out projects (default: the work folder's, if there)")
    add("--prompts", type=Path, metavar="FILE", help="a HumanEval file (.jsonl or .jsonl.gz): one blanked line a task")
    add("--json", type=Path, metavar="OUT", help="write all figures to this file")
    add("--limit", type=count, default=0, metavar="N", help="at most N cases per language and measure")
    add("--show", type=count, default=0, metavar="N", help="print N completions as Markdown instead of measuring")
    _add_machine(parser, threads=1, seed="of the rule that chooses the cases (0)")
