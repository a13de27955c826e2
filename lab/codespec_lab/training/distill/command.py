"""`codespec distill`: map the flags to settings, run, and print the result."""

from __future__ import annotations

import argparse

from codespec_lab.training.distill.acceptance import Comparison, gain
from codespec_lab.training.distill.run import distill
from codespec_lab.training.distill.work import Settings

STOPPED = 3


def run_distill(options: argparse.Namespace) -> int:
    """Distill with the parsed flags; return 3 if a signal stopped the run, whose state is then saved."""
    flags = {name: getattr(options, name) for name in Settings.__dataclass_fields__}
    settings = Settings(**flags | {"code": tuple(options.code), "keep": tuple(options.keep)})
    outcome = distill(settings, resume=options.resume)
    if outcome.found is not None:
        print(_compared(outcome.found))
    if outcome.folder is not None:
        print(f"The new drafter is in {outcome.folder}: use it with --drafter {outcome.folder}.")
    elif outcome.reason:
        print(f"Keep the old one: {outcome.reason}; {settings.out} was not written.")
    else:
        print(f"Stopped with everything kept in {settings.out}.work: continue with --resume.")
        return STOPPED
    return 0


def _compared(found: Comparison) -> str:
    rows = (
        ("held-out files", found.here_before, found.here_after),
        ("elsewhere", found.elsewhere_before, found.elsewhere_after),
    )
    return "\n".join(
        f"accepted a round, {name}: {f'{before:.3f} → ' if before is not None else ''}{after:.3f} {gain(before, after)}"
        for name, before, after in rows
    )
