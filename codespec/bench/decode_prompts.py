"""Which prompts `codespec bench decode` takes: the first of two shuffled lists, a prompts file's and held-out places.

Nobody chooses among them, and no text is looked at before it is measured. Knows places and texts; knows no seconds.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codespec.bench.peers.contest import PROJECTS, PROMPTS, Task
from codespec.bench.policy_spots import held_out_spots, prompt_spots
from codespec.bench.recording import Spot
from codespec.engine.admission import Admission
from codespec.errors import ConfigError
from codespec.types import CompletionRequest

A_LANGUAGE = 200  # places of held-out code that are shuffled
ALL_PROMPTS = 1 << 20  # of a file
SEED = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A prompt of one of the KINDS, as its source gives it: with a suffix or without."""

    kind: str
    prefix: str
    suffix: str
    path: str


def find_places(held_out: Path | None, prompts: Path | None) -> tuple[list[Place], str]:
    """All places in the order in which they are taken, in turn from both lists where there are two, and what to report
    of them. Without any file held-out code is read where `codespec train corpus` leaves it.
    """
    lists, notes = [], []
    if prompts is not None:
        lists.append(_shuffled(PROMPTS, prompt_spots(prompts, ALL_PROMPTS)))
    if held_out is not None or prompts is None:
        spots, note = held_out_spots(held_out, A_LANGUAGE)
        lists.append(_shuffled(PROJECTS, spots))
        notes += [note] if note else []
    count = min(map(len, lists))
    places = [found[turn] for turn in range(count) for found in lists]
    if not places:
        raise ConfigError("No prompt has any text: give other ones by --prompts or --held-out.")
    return places, "; ".join(notes)


def digest(places: Sequence[Place]) -> str:
    """Names a list of places."""
    return hashlib.blake2b(repr(places).encode(), digest_size=8).hexdigest()


def make_tasks(admission: Admission, places: Sequence[Place], tokens: int) -> tuple[list[Task], frozenset[int]]:
    """The places as the target's own ids with room for so many more, and the ids that end a text there: `generate`'s,
    and all control tokens if a prompt has text on both sides.
    """
    tasks, ends = [], set[int]()
    for number, place in enumerate(places):
        request = CompletionRequest(prefix=place.prefix, suffix=place.suffix, path=place.path, max_tokens=tokens)
        sequence = admission.admit(request)[0]
        tasks.append(Task(number, place.kind, place.prefix, place.suffix, place.path, tuple(sequence.prompt_ids)))
        ends |= sequence.eos_ids
    return tasks, frozenset(ends)


def count_kinds(tasks: Sequence[Task]) -> Mapping[str, int]:
    """How many tasks there are of each kind that there is."""
    kinds = dict.fromkeys(task.kind for task in tasks)
    return {kind: sum(task.kind == kind for task in tasks) for kind in kinds}


def _shuffled(kind: str, spots: Sequence[Spot]) -> list[Place]:
    places = [Place(kind, spot.prefix, spot.suffix, spot.path) for spot in spots if spot.prefix.strip()]
    random.Random(SEED).shuffle(places)
    return places
