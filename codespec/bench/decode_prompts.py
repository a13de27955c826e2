"""Which prompts `codespec bench decode` takes: places by rule, sorted by what the target writes there.

A text that goes round in circles is easy to guess and nobody is shown it, so places are first completed plainly, in a
seeded order, until there are enough whose text is no loop; a few of the others are measured too, and so are two kinds
made from the first places: a piece of code repeated with small edits (much can be guessed) and random words (nothing
can). Knows places and texts; knows no seconds.
"""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codespec.bench.peers.contest import CODE, GROUPS, LOOPS, NOISE, REWRITE, Task, Variant, Work
from codespec.bench.peers.ours import Own, OwnModels
from codespec.bench.policy_spots import held_out_spots, prompt_spots
from codespec.engine.admission import Admission
from codespec.errors import ConfigError
from codespec.training.loops import is_loop
from codespec.types import CompletionRequest

PROMPT_BYTES = 800  # of the text before the cursor, from a line's start
A_LANGUAGE, SEEDS = 200, 4  # places looked at, for each of so many seeds: of a small target's texts few go straight
ALL_PLACES = 1 << 20  # of a prompts file
SEED = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A prompt that may be taken."""

    prefix: str
    path: str


@dataclass(slots=True)
class Chosen:
    """The tasks that are measured, of how many places that were looked at, and how many of those looped."""

    tasks: list[Task] = field(default_factory=list)
    seen: int = 0
    looping: int = 0

    def group(self, name: str, most: int) -> list[Task]:
        """The first tasks of a group."""
        return [task for task in self.tasks if task.group == name][:most]

    def facts(self) -> dict[str, Any]:
        """What another run needs to choose the same, as JSON values."""
        numbers = {name: [task.number for task in self.tasks if task.group == name] for name in GROUPS}
        return {"places": self.seen, "looping": self.looping, "numbers": numbers}


def find_places(held_out: Path | None, prompts: Path | None) -> tuple[list[Place], str]:
    """All places, shuffled once and for all, and what to tell of them."""
    if prompts is not None:
        spots, note = prompt_spots(prompts, ALL_PLACES), "prompts of a file"
    else:
        found = [held_out_spots(held_out, A_LANGUAGE, seed) for seed in range(SEEDS)]
        spots, note = list(dict.fromkeys(spot for part, _ in found for spot in part)), found[0][1]
    places = [Place(_tail(spot.prefix), spot.path) for spot in spots if spot.prefix.strip()]
    if not places:
        raise ConfigError("No prompt has any text: give other ones by --prompts or --held-out.")
    random.Random(SEED).shuffle(places)
    return places, note


def digest(places: Sequence[Place]) -> str:
    """Names a list of places."""
    return hashlib.blake2b(repr(places).encode(), digest_size=8).hexdigest()


def choose_tasks(
    models: OwnModels,
    variant: Variant,
    places: Sequence[Place],
    *,
    limit: int,
    loops: int,
    extra: int,
    tokens: int,
    temperature: float,
    advance: Callable[[], None],
) -> Chosen:
    """Completes places plainly until `limit` texts go straight, or all were seen; takes `loops` of the others, and
    `extra` prompts of each made kind. `advance` is told of each straight one.
    """
    found, most = Chosen(), {CODE: limit, LOOPS: loops}
    taken = dict.fromkeys(most, 0)
    plain, admission = Own("", models, ()), _admission(models, variant)
    pieces = models.pair(variant).target.token_bytes
    for begin in range(0, len(places), models.slots):
        if taken[CODE] >= limit:
            break
        batch = tuple(
            _task(admission, begin + n, CODE, place) for n, place in enumerate(places[begin : begin + models.slots])
        )
        for task, looping in zip(
            batch, find_loops(plain, variant, Work(batch, tokens, temperature), pieces), strict=True
        ):
            group = LOOPS if looping else CODE
            found.seen += 1
            found.looping += looping
            if taken[group] < most[group]:
                taken[group] += 1
                found.tasks.append(Task(task.number, group, task.prefix, task.path, task.ids))
                if group == CODE:
                    advance()
    found.tasks += _made_tasks(admission, places, extra)
    return found


def find_loops(plain: Own, variant: Variant, work: Work, pieces: Sequence[bytes]) -> list[bool]:
    """Which texts go round in circles. Most do so in their first half: only the others are written to their end."""
    looping, going = [False] * len(work.tasks), list(range(len(work.tasks)))
    for tokens in (max(1, work.tokens // 2), work.tokens):
        half = Work(tuple(work.tasks[n] for n in going), tokens, work.temperature)
        for n, ids in zip(going, plain.answer(half, variant).ids if going else (), strict=True):
            looping[n] = is_loop(b"".join(pieces[token] for token in ids))
        going = [n for n in going if not looping[n]]
    return looping


def rebuild_tasks(
    models: OwnModels, variant: Variant, places: Sequence[Place], facts: Mapping[str, Any], extra: int
) -> Chosen:
    """The tasks that an earlier run chose, by their facts."""
    admission, numbers = _admission(models, variant), facts["numbers"]
    tasks = [_task(admission, number, group, places[number]) for group in (CODE, LOOPS) for number in numbers[group]]
    return Chosen(tasks + _made_tasks(admission, places, extra), facts["places"], facts["looping"])


def first_tasks(models: OwnModels, variant: Variant, places: Sequence[Place], count: int) -> list[Task]:
    """The first places as tasks, whatever is written there."""
    admission = _admission(models, variant)
    return [_task(admission, number, CODE, place) for number, place in enumerate(places[:count])]


def _made_tasks(admission: Admission, places: Sequence[Place], count: int) -> list[Task]:
    """`count` of each made kind, numbered behind all places."""
    rewrites = [_rewritten(place) for place in places if place.prefix.count("\n") >= 8][:count]
    noise = [_noise(number) for number in range(count)]
    made = [(REWRITE, place) for place in rewrites] + [(NOISE, place) for place in noise]
    return [_task(admission, len(places) + n, group, place) for n, (group, place) in enumerate(made)]


def _tail(prefix: str) -> str:
    """The last PROMPT_BYTES of a text, from a line's start."""
    tail = prefix.encode()[-PROMPT_BYTES:]
    if len(tail) == PROMPT_BYTES and b"\n" in tail:
        tail = tail[tail.index(b"\n") + 1 :]
    return tail.decode(errors="ignore")


def _rewritten(place: Place) -> Place:
    """A piece of code, and the first half of it again with its commonest long word renamed."""
    words = [word for word in place.prefix.replace(".", " ").replace("(", " ").split() if word.isidentifier()]
    long = sorted({word for word in words if len(word) >= 4}, key=lambda word: (-words.count(word), word))
    again = place.prefix.replace(long[0], f"new_{long[0]}") if long else place.prefix
    lines = again.splitlines(keepends=True)
    return Place(f"{place.prefix}\n\n{''.join(lines[: len(lines) // 2])}", place.path)


def _noise(number: int) -> Place:
    """Assignments of random names and base64: what follows can't be guessed from what stands there."""
    dice = random.Random(f"noise {number}")
    lines: list[str] = []
    while sum(len(line) for line in lines) < PROMPT_BYTES:
        name = "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(5, 12)))
        lines.append(f'{name} = "{base64.b64encode(dice.randbytes(33)).decode()}"\n')
    return Place("".join(lines), "noise.py")


def _admission(models: OwnModels, variant: Variant) -> Admission:
    pair = models.pair(variant)
    return Admission(pair.target, pair.context)


def _task(admission: Admission, number: int, group: str, place: Place) -> Task:
    request = CompletionRequest(prefix=place.prefix, path=place.path, max_tokens=1)
    return Task(number, group, place.prefix, place.path, tuple(admission.admit(request)[0].prompt_ids))
