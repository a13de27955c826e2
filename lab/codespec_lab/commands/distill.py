"""`codespec distill`: train a drafter on the target's output in the user's code. Its flags and their ranges."""

from __future__ import annotations

import argparse
import math
from typing import Any

from codespec.api.config import MAX_THREADS
from codespec.cli.options import require_torch
from codespec.errors import ConfigError

MAX_RATE = 0.1
STOPPED = 3


def add_parser(commands: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "distill",
        help="train a drafter on its target's output in your code",
        description="Has the target write at places of your code, teaches the drafter, and hands it over in a new "
        "folder if more of its guesses are accepted on files that were held out. Nothing leaves the machine.",
    )
    add = parser.add_argument
    add("--target", required=True, metavar="T", help="the model that decides: a name, a folder, a .gguf file, a hub id")
    add("--drafter", required=True, metavar="D|new:SIZE", help="the model to begin from, or a new one: new:1M, new:5M")
    add("--code", required=True, nargs="+", metavar="DIR", help="folders with the code; an eighth is held out")
    add("--out", required=True, metavar="DIR", help="a new folder for the drafter; work files go to DIR.work")
    add("--keep", nargs="+", default=[], metavar="DIR", help="other code, on which acceptance must not fall by 3 %%")
    add("--minutes", type=float, default=20.0, metavar="N", help="of the whole run (20)")
    add("--places", type=int, default=0, metavar="N", help="places to write at (as many as the minutes allow)")
    add("--steps", type=int, default=0, metavar="N", help="steps of training (as many as the minutes allow)")
    add("--rounds", type=int, default=0, metavar="N", help="times that the drafter learns from its own texts (0)")
    add("--rate", type=float, default=1e-3, metavar="R", help="the peak learning rate (0.001)")
    add("--method", choices=("auto", "full", "lora"), default="auto", help="auto: LoRA above 40 M parameters")
    add("--plain", action="store_true", help="continuations only, for a target that cannot fill in the middle")
    add("--resume", action="store_true", help="continue a run that was stopped or killed; give the same flags")
    add("--seed", type=int, default=0, metavar="N")
    add("--threads", type=int, default=2, metavar="N", help="processor threads (2)")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the distillation and print the result; return 0 at the end, 3 if a signal stopped it with all work kept."""
    check_ranges(options)
    require_torch()
    from codespec_lab.training.distill.run import distill
    from codespec_lab.training.distill.work import Settings

    flags = {name: getattr(options, name) for name in Settings.__dataclass_fields__}
    settings = Settings(**flags | {"code": tuple(options.code), "keep": tuple(options.keep)})
    outcome = distill(settings, resume=options.resume)
    if outcome.found is not None:
        print(outcome.found)
    if outcome.folder is not None:
        print(f"The new drafter is in {outcome.folder}: use it with --drafter {outcome.folder}.")
    elif outcome.reason:
        print(f"Keep the old one: {outcome.reason}; {settings.out} was not written.")
    else:
        print(f"Stopped with everything kept in {settings.out}.work: continue with --resume.")
        return STOPPED
    return 0


def check_ranges(options: argparse.Namespace) -> None:
    """Raise ConfigError for the first number that is out of range."""
    if not 1 <= options.threads <= MAX_THREADS:
        raise ConfigError(f"--threads {options.threads} is out of range: choose 1 to {MAX_THREADS}.")
    for name in ("places", "steps", "rounds", "seed"):
        if getattr(options, name) < 0:
            raise ConfigError(f"--{name} {getattr(options, name)} is out of range: choose 0 or more.")
    if not 0 < options.minutes < math.inf:
        raise ConfigError(f"--minutes {options.minutes} is out of range: it must be above 0.")
    if not 0 < options.rate <= MAX_RATE:
        raise ConfigError(f"--rate {options.rate} is out of range: choose above 0, up to {MAX_RATE}.")
