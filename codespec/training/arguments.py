"""The flags of `codespec train …`. Knows names and defaults; loads no torch, so that `codespec --help` needs none."""

from __future__ import annotations

import argparse
from pathlib import Path

from codespec.config import STARTER

MODELS = ("drafter", "target")


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `corpus`, `tokenizers`, `pretrain`, `export` and `all` to the parser of `codespec train`."""
    parser.add_argument("--work", type=Path, default=Path(".train"), help="folder for all work files (.train)")
    actions = parser.add_subparsers(dest="action", required=True)
    corpus = actions.add_parser("corpus", help="collect permissively licensed source from installed packages")
    _add_corpus_arguments(corpus)
    actions.add_parser("tokenizers", help="train both tokenizers on a sample of the corpus")
    one = actions.add_parser("pretrain", help="train one model")
    one.add_argument("name", choices=MODELS)
    one.add_argument("--minutes", type=float, default=60.0, help="budget in minutes of working time (60)")
    one.add_argument("--steps", type=int, default=0, help="budget in steps; a resume then repeats exactly")
    export = actions.add_parser("export", help="write a checkpoint's weights as a Hugging Face folder")
    export.add_argument("name", choices=MODELS)
    both = actions.add_parser("all", help="corpus, tokenizers and both models")
    _add_corpus_arguments(both)
    both.add_argument("--drafter-minutes", type=float, default=17.0)
    both.add_argument("--target-minutes", type=float, default=63.0)
    for action in (one, export, both):
        action.add_argument("--out", type=Path, default=STARTER, help="where the finished model folders go")
        action.add_argument("--seed", type=int, default=0)
    for action in (one, both):
        action.add_argument("--resume", action="store_true", help="go on from the checkpoints")
        action.add_argument("--threads", type=int, default=2)
        action.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def _add_corpus_arguments(parser: argparse.ArgumentParser) -> None:
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
