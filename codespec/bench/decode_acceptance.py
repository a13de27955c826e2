"""How often drafts hold, position by position, at fixed lengths: what the bound of `decode_bound` is made of.

Not timed, so it is done with the small target (an enlarged one writes the same, up to rounding) and in batches. One
short and one long length, because a long draft that holds skips the places where another one would have begun. Knows
codespec's contestants and prompts; knows no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from codespec.bench.decode_bound import count_kept
from codespec.bench.peers.contest import GROUPS, Task, Variant, Work
from codespec.bench.peers.ours import Own, OwnModels
from codespec.bench.recording import LONGEST

LENGTHS = (4, LONGEST)
BATCH = 8


def measure_acceptance(
    models: OwnModels,
    contestants: Sequence[Own],
    variants: Mapping[str, Variant],
    tasks: Sequence[Task],
    tokens: int,
    temperature: float,
    advance: Callable[[], None],
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """By contestant and group of prompts: for each of LENGTHS what held, by proposer, as JSON values. `advance` is told
    of each contestant.
    """
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    count = min(BATCH, models.slots)
    for contestant in contestants:
        found[contestant.name] = {}
        for group in GROUPS:
            own = [task for task in tasks if task.group == group]
            if not own:
                continue
            found[contestant.name][group] = []
            for length in LENGTHS:
                drafting = Own(contestant.name, models, contestant.sources, length)
                work = [Work(tuple(own[n : n + count]), tokens, temperature) for n in range(0, len(own), count)]
                steps = [step for part in work for step in drafting.answer(part, variants[contestant.name]).steps]
                kept = {source: asdict(one) for source, one in count_kept(steps).items()}
                found[contestant.name][group].append(kept)
        advance()
    return found
