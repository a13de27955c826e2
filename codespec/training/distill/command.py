"""`codespec distill` from flags to the last line. Knows flags and streams; the run itself is `run`."""

from __future__ import annotations

import argparse
import sys

from codespec.errors import TrainingError
from codespec.memory.places import read_places
from codespec.training.distill.card import Comparison, gain
from codespec.training.distill.run import distill
from codespec.training.distill.settings import Settings

STOPPED = 3


def run_distill(options: argparse.Namespace) -> int:
    """Distill as the flags say; returns 3 where a signal stopped it with everything kept."""
    flags = {name: getattr(options, name) for name in Settings.__dataclass_fields__}
    settings = Settings(**flags | {"code": tuple(options.code), "keep": tuple(options.keep)})
    outcome = distill(settings, resume=options.resume, more=gathered_places() if options.gathered else ())
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


def gathered_places() -> list[tuple[str, str, str, str]]:
    """Path, prefix, suffix and text of every place that the daemon gathered. Raises TrainingError if there are none."""
    notes = list[str]()
    places = read_places(notes)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if not places:
        raise TrainingError(
            "No places have been gathered: set gather_places = true in the configuration for a while, or leave out "
            "--gathered."
        )
    return [(place.path, place.prefix, place.suffix, place.text) for place in places]


def _compared(found: Comparison) -> str:
    rows = (
        ("held-out files", found.here_before, found.here_after),
        ("elsewhere", found.elsewhere_before, found.elsewhere_after),
    )
    return "\n".join(
        f"accepted a round, {name}: {f'{before:.3f} → ' if before is not None else ''}{after:.3f} {gain(before, after)}"
        for name, before, after in rows
    )
