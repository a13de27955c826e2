"""Whose turn it is: which choices of which jobs take part in the next round, where there are more than slots.

Jobs with the least left to write go first, so that who asks for little does not wait for who asks for much (shortest
remaining time first, Schrage 1968). Owners take turns, one choice of each and then a second of each, so that asking
more often brings no more (fair queueing, Nagle 1985). Neither lets anybody starve:

- A quarter of the slots is the oldest job's; with fewer than four slots, it goes first for 16 rounds in every 64. If
  each of its n choices takes r rounds, it ends within r * ceil(n / (slots // 4)) rounds, or with fewer than four slots
  within 4 * r * ceil(n / slots) + 64, whatever comes after it. The next one is the oldest then.
- Who has the least left to write begins in the next round, or with fewer than four slots after 16 at most.
- A warm-up lets texts go first, but not for more than 256 rounds.

What nobody asked for takes part only where nothing else is to be done. Knows jobs and rounds; knows no engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from codespec.server.jobs import Job
from codespec.server.tickets import Priority
from codespec.types import Owner

SHARE = 4  # of so many slots, or turns, one is the oldest job's
TURN = 16  # rounds
PATIENCE = 256  # rounds that a warm-up waits


class Turn(NamedTuple):
    """One choice of a job."""

    job: Job
    choice: int


def choose(jobs: Collection[Job], slots: int, round_number: int) -> list[Turn]:
    """Who takes part in a round. A job that failed with others takes part by itself."""
    if not jobs:
        return []
    urgencies = [urgency(job) for job in jobs]
    most = min(urgencies)
    able = [job for job, own in zip(jobs, urgencies, strict=True) if own == most]
    everybody = [Turn(job, choice) for job in able for choice in job.able]
    if len(everybody) <= slots and not any(job.alone for job in able):
        return everybody
    first = _share_of_oldest(min(able, key=lambda job: job.number), slots, round_number)
    leader = first[0].job if first else min(able, key=_work)
    together = [leader] if leader.alone else [job for job in able if not job.alone]
    return (first + [turn for turn in _in_turn(together, slots) if turn not in first])[:slots]


def urgency(job: Job) -> Priority:
    """Its priority; a warm-up that waited for long counts as a text."""
    late = job.priority == Priority.WARM_UP and job.waited >= PATIENCE
    return Priority.INTERACTIVE if late else job.priority


def _share_of_oldest(oldest: Job, slots: int, round_number: int) -> list[Turn]:
    """What goes first whatever else there is."""
    if slots >= SHARE and not oldest.alone:
        return [Turn(oldest, choice) for choice in oldest.able[: slots // SHARE]]
    its_turn = round_number // TURN % SHARE == SHARE - 1
    return [Turn(oldest, choice) for choice in oldest.able] if its_turn else []


def _in_turn(jobs: Collection[Job], most: int) -> list[Turn]:
    """What can take part, by owners in turn and by what is left to write; so many of each owner are enough."""
    placed: list[tuple[int, Turn]] = []
    taken: Counter[Owner] = Counter()
    for job in sorted(jobs, key=_work):
        for choice in job.able[: most - taken[job.ask.owner]]:
            placed.append((taken[job.ask.owner], Turn(job, choice)))
            taken[job.ask.owner] += 1
    placed.sort(key=lambda one: one[0])
    return [turn for _, turn in placed]


def _work(job: Job) -> tuple[int, int]:
    """Smaller goes first."""
    return job.remaining, job.number
