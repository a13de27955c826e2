"""`codespec train`: corpus, tokenizers and models of a user's own pair. Flags and their ranges."""

from __future__ import annotations

import argparse
import math
from typing import Any

from codespec.cli.options import require_torch
from codespec.contract.engine_config import MOST_THREADS
from codespec.errors import ConfigError
from codespec_lab.training.arguments import add_train_arguments

MINUTES = ("minutes", "drafter_minutes", "target_minutes")


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
    given = vars(options)
    if not 1 <= given.get("threads", 1) <= MOST_THREADS:
        raise ConfigError(f"--threads {given['threads']} is out of range: choose 1 to {MOST_THREADS}.")
    if given.get("steps", 0) < 0:
        raise ConfigError(f"--steps {given['steps']} is out of range: choose 1 or more, or 0 for a budget in minutes.")
    for name in MINUTES:
        if not 0 < given.get(name, 1) < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} {given[name]} is out of range: it must be above 0.")
