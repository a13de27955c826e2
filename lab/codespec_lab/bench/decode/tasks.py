"""What `codespec bench decode` decodes: tasks (prompts as the target's ids), cells (how tokens are chosen, and how many
prompts run at once), and the workloads of a cell.

The prompts are the first of two shuffled lists, a prompts file's and held-out sites, so nobody chooses among them. In a
cell of one prompt at once each prompt is a workload. In other cells a workload has more prompts than run at once: as
one text ends the next begins, so that the batch stays full. Knows sites and ids; knows no seconds.
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
FILLS = 2  # prompts for each slot of a batch
SITES_PER_LANGUAGE = 200  # of held-out code, before they are shuffled
SEED = 0


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt: its number, which is its seed too, its site, and the target's ids."""

    number: int
    site: Site
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks that are decoded greedily or (temperature > 0) sampled, `at_once` at any time, or all (0). A text ends with
    an id of `ends`, or after `tokens`.
    """

    tasks: tuple[Task, ...]
    tokens: int
    temperature: float = 0.0
    at_once: int = 0
    ends: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """How many run at once."""
        return min(self.at_once or len(self.tasks), len(self.tasks))

    @property
    def kind(self) -> str:
        """The kind of all its sites; "" where they are mixed."""
        kinds = {task.site.kind for task in self.tasks}
        return kinds.pop() if len(kinds) == 1 else ""

    def parts(self) -> list[Workload]:
        """The same as batches that begin together and end together, one after the other."""
        starts = range(0, len(self.tasks), max(1, self.count))
        return [replace(self, tasks=self.tasks[begin : begin + self.count]) for begin in starts]


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison: how tokens are chosen, and how many prompts run at once."""

    sampling: str
    concurrency: int

    @property
    def size(self) -> int:
        """The prompts of each of its workloads."""
        return self.concurrency * (FILLS if self.concurrency > 1 else 1)

    def workloads(self, tasks: Sequence[Task], limit: int, tokens: int, ends: frozenset[int]) -> list[Workload]:
        """The first `limit` tasks, or as many as one workload needs; tasks that fill no workload are left out."""
        several = tasks[: max(limit, self.size)]
        starts = range(0, len(several) - self.size + 1, self.size)
        temperature = SAMPLINGS[self.sampling]
        return [
            Workload(tuple(several[begin : begin + self.size]), tokens, temperature, self.concurrency, ends)
            for begin in starts
        ]


def find_sites(held_out: Path | None, prompts: Path | None) -> tuple[list[Site], str]:
    """All sites in the order in which they are taken, alternately from both lists where there are two, and a note for
    the report. Without any file held-out code is read where `codespec train corpus` leaves it.
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
    """Identifies a list of sites."""
    return hashlib.blake2b(repr(sites).encode(), digest_size=8).hexdigest()


def make_tasks(admission: Admission, sites: Sequence[Site], tokens: int) -> tuple[list[Task], frozenset[int]]:
    """The sites as the target's own ids with room for `tokens` more, and the ids that end a text: those of
    transformers' `generate`, and all control tokens if a prompt has text on both sides.
    """
    tasks, ends = [], set[int]()
    for number, site in enumerate(sites):
        sequence = admission.admit(site.request(tokens))[0]
        tasks.append(Task(number, site, tuple(sequence.prompt_ids)))
        ends |= sequence.eos_ids
    return tasks, frozenset(ends)


def count_kinds(tasks: Sequence[Task]) -> Mapping[str, int]:
    """How many tasks there are of each kind of site."""
    kinds = dict.fromkeys(task.site.kind for task in tasks)
    return {kind: sum(task.site.kind == kind for task in tasks) for kind in kinds}


def _shuffled(sites: Sequence[Site]) -> list[Site]:
    found = [site for site in sites if site.prefix.strip()]
    random.Random(SEED).shuffle(found)
    return found
