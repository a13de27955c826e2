"""`codespec train`: corpus, tokenizers and models of a pair of one's own. Knows flags only."""

from __future__ import annotations

import argparse
from typing import Any

from codespec.cli.options import require_torch
from codespec.training.arguments import add_train_arguments


def add_parser(commands: Any) -> None:
    """Adds the command and its sub-commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train", help="train a target and a drafter", allow_abbrev=False
    )
    add_train_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs a training step."""
    require_torch()
    from codespec.training.command import run_train

    return run_train(options)
