"""Tasks of `codespec bench decode` (prompts as the target's ids), cells (sampling, concurrency), and their workloads.

The prompts are the first of two shuffled lists, a prompts file and held-out sites, so that none is hand-picked. In a
cell with one prompt at a time each prompt is a workload. In other cells a workload has more prompts than run at once:
when a text ends, the next prompt begins, so that the batch stays full.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from codespec.engine.admission import Admission
from codespec.errors import ConfigError
from codespec_lab.bench.sites import Site, held_out_sites, prompt_sites

TEMPERATURE = 0.8
SAMPLINGS = {"greedy": 0.0, "sampled": TEMPERATURE}
CONCURRENCY = (1, 4, 8, 16)
FILLS = 2  # prompts per slot of a batch
SITES_PER_LANGUAGE = 200  # of held-out code, before they are shuffled
SEED = 0


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt: its number (also its seed), its site, and the target's ids."""

    number: int
    site: Site
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks to decode greedily or (temperature > 0) sampled, `at_once` at a time, or all together (0). A text ends with
    an id of `ends`, or after `tokens` tokens.
    """

    tasks: tuple[Task, ...]
    tokens: int
    temperature: float = 0.0
    at_once: int = 0
    ends: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """Return the number of tasks that run at once."""
        return min(self.at_once or len(self.tasks), len(self.tasks))

    @property
    def kind(self) -> str:
        """Return the kind of all its sites; "" if they are mixed."""
        kinds = {task.site.kind for task in self.tasks}
        return kinds.pop() if len(kinds) == 1 else ""

    def parts(self) -> list[Workload]:
        """Split the workload into consecutive batches whose tasks begin together."""
        starts = range(0, len(self.tasks), max(1, self.count))
        return [replace(self, tasks=self.tasks[begin : begin + self.count]) for begin in starts]


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison: sampling and concurrency."""

    sampling: str
    concurrency: int

    @property
    def size(self) -> int:
        """Return the number of prompts of each of its workloads."""
        return self.concurrency * (FILLS if self.concurrency > 1 else 1)

    def workloads(self, tasks: Sequence[Task], limit: int, tokens: int, ends: frozenset[int]) -> list[Workload]:
        """Split the first `limit` tasks, or as many as one workload needs; leftover tasks are dropped."""
        several = tasks[: max(limit, self.size)]
        starts = range(0, len(several) - self.size + 1, self.size)
        temperature = SAMPLINGS[self.sampling]
        return [
            Workload(tuple(several[begin : begin + self.size]), tokens, temperature, self.concurrency, ends)
            for begin in starts
        ]


def find_sites(held_out: Path | None, prompts: Path | None) -> tuple[list[Site], str]:
    """Return all sites in their order of use, alternating between the two lists if both are given, and a note for the
    report. Without any file, read held-out code from the default path of `codespec train corpus`.
    """
    lists, notes = [], []
    if prompts is not None:
        lists.append(_shuffled(prompt_sites(prompts)))
    if held_out is not None or prompts is None:
        sites, note = held_out_sites(held_out, SITES_PER_LANGUAGE)
        lists.append(_shuffled(sites))
        notes += [note] if note else []
    count = min(map(len, lists))
    sites = [found[turn] for turn in range(count) for found in lists]
    if not sites:
        raise ConfigError("No prompt has any text: give other ones by --prompts or --held-out.")
    return sites, "; ".join(notes)


def digest(sites: Sequence[Site]) -> str:
    """Return a digest that identifies a list of sites."""
    return hashlib.blake2b(repr(sites).encode(), digest_size=8).hexdigest()


def make_tasks(admission: Admission, sites: Sequence[Site], tokens: int) -> tuple[list[Task], frozenset[int]]:
    """Return the sites as the target's ids with room for `tokens` more, and the ids that end a text: those of
    transformers' `generate`, and all control tokens if a prompt has text on both sides.
    """
    tasks, ends = [], set[int]()
    for number, site in enumerate(sites):
        sequence = admission.admit(site.request(tokens))[0]
        tasks.append(Task(number, site, tuple(sequence.prompt_ids)))
        ends |= sequence.eos_ids
    return tasks, frozenset(ends)


def count_kinds(tasks: Sequence[Task]) -> Mapping[str, int]:
    """Return the number of tasks of each kind of site."""
    kinds = dict.fromkeys(task.site.kind for task in tasks)
    return {kind: sum(task.site.kind == kind for task in tasks) for kind in kinds}


def _shuffled(sites: Sequence[Site]) -> list[Site]:
    found = [site for site in sites if site.prefix.strip()]
    random.Random(SEED).shuffle(found)
    return found
