"""Where recorded completions begin: places in held-out projects of every language, or a prompts file. Knows files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from codespec_grammars import find_language

from codespec.bench.prompts import read_prompts
from codespec.bench.recording import Spot
from codespec.corpus.documents import Document
from codespec.corpus.gaps import Gap, line_gaps, spread
from codespec.corpus.held_out import read_held_out
from codespec.errors import ConfigError

HELD_OUT = Path(".train/held_out.jsonl.gz")
A_FILE = 3  # places in one file, so that a policy that starts afresh there has something to learn from


def held_out_spots(file: Path | None, limit: int, seed: int = 0) -> tuple[list[Spot], str]:
    """`limit` places a language by the rule of `codespec train eval`, and what to tell of them; another seed gives
    others. Without a file the corpus step's, without that the standard library's held-out parts alone. TrainingError
    for a file that can't be read.
    """
    held_out = read_held_out(file or HELD_OUT, named=file is not None)
    spots = [_spot(gap) for documents in held_out.rows.values() for gap in _gaps(documents, limit, seed)]
    if not spots:
        raise ConfigError("The held-out code holds no place to complete: name another file by --held-out.")
    return spots, held_out.note


def prompt_spots(file: Path, limit: int) -> list[Spot]:
    """`limit` prompts of a file, evenly spread, each a project of its own. ConfigError names a line that is none."""
    prompts = read_prompts(file)
    if not prompts:
        raise ConfigError(f"The prompts file {file} is empty: give one JSON object a line.")
    return [
        Spot(f"prompt {number}", prompt.path, find_language("", prompt.path) or "unknown", prompt.prefix, prompt.suffix)
        for number, prompt in ((n + 1, prompts[n]) for n in spread_numbers(len(prompts), limit))
    ]


def spread_numbers(total: int, count: int) -> list[int]:
    """`count` of the numbers below `total`, evenly spread."""
    step = max(1.0, total / max(1, count))
    return [int(place * step) for place in range(min(count, total))]


def _gaps(documents: Sequence[Document], limit: int, seed: int) -> list[Gap]:
    find = line_gaps(seed)
    fit = [document for document in documents if find(document, 0) is not None]
    chosen = [fit[number] for number in spread_numbers(len(fit), math.ceil(limit / A_FILE))]
    return sorted(spread(chosen, limit, find), key=lambda gap: (gap.package, gap.path, gap.line))


def _spot(gap: Gap) -> Spot:
    return Spot(gap.package, gap.path, gap.language, gap.prefix)
