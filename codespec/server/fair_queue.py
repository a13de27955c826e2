"""Choose the job choices for the next round when there are more than slots.

Jobs with the fewest tokens left go first, so that a short request does not wait for a long one (shortest remaining time
first, Schrage 1968). Owners take turns in round-robin order, one choice each and then a second choice each, so that
sending more requests does not yield more slots (fair queueing, Nagle 1985). Neither rule lets a job starve:

- The oldest job owns a quarter of the slots; with fewer than four slots, it goes first for 16 rounds in every 64. If
  each of its n choices takes r rounds, it ends within r * ceil(n / (slots // 4)) rounds, or with fewer than four slots
  within 4 * r * ceil(n / slots) + 64, regardless of later arrivals. Then the next job is the oldest.
- The job with the fewest tokens left begins in the next round, or with fewer than four slots after at most 16.
- A warm-up lets requests for text go first, but for no more than 256 rounds (aging).

Prefetches and audits run only if there is no other work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from codespec.server.handles import Priority
from codespec.server.jobs import Job
from codespec.types import Owner

OLDEST_SHARE = 4  # the oldest job owns one slot in four, or one quantum in four
QUANTUM = 16  # rounds
AGING = 256  # rounds that a warm-up waits before it counts as a request for text


class Scheduled(NamedTuple):
    """One choice of a job scheduled for a round."""

    job: Job
    choice: int


def schedule(jobs: Collection[Job], slots: int, round_number: int) -> list[Scheduled]:
    """Return the choices for the next round, at most `slots`. A job that failed together with others runs alone."""
    if not jobs:
        return []
    priorities = [effective_priority(job) for job in jobs]
    highest = min(priorities)
    eligible = [job for job, priority in zip(jobs, priorities, strict=True) if priority == highest]
    everything = [Scheduled(job, choice) for job in eligible for choice in job.runnable]
    if len(everything) <= slots and not any(job.alone for job in eligible):
        return everything
    first = _share_of_oldest(min(eligible, key=lambda job: job.number), slots, round_number)
    leader = first[0].job if first else min(eligible, key=_remaining)
    together = [leader] if leader.alone else [job for job in eligible if not job.alone]
    return (first + [one for one in _round_robin(together, slots) if one not in first])[:slots]


def effective_priority(job: Job) -> Priority:
    """Return a job's priority. A warm-up that has waited AGING rounds counts as a request for text."""
    aged = job.priority == Priority.WARM_UP and job.rounds_waited >= AGING
    return Priority.INTERACTIVE if aged else job.priority


def _share_of_oldest(oldest: Job, slots: int, round_number: int) -> list[Scheduled]:
    """Return the choices of the oldest job that are reserved before all others."""
    if slots >= OLDEST_SHARE and not oldest.alone:
        return [Scheduled(oldest, choice) for choice in oldest.runnable[: slots // OLDEST_SHARE]]
    its_quantum = round_number // QUANTUM % OLDEST_SHARE == OLDEST_SHARE - 1
    return [Scheduled(oldest, choice) for choice in oldest.runnable] if its_quantum else []


def _round_robin(jobs: Collection[Job], most: int) -> list[Scheduled]:
    """Return runnable choices in round-robin order of their owners, at most `most` per owner.

    The choices of one owner are ordered by the tokens left to generate.
    """
    ranked: list[tuple[int, Scheduled]] = []
    taken: Counter[Owner] = Counter()
    for job in sorted(jobs, key=_remaining):
        for choice in job.runnable[: most - taken[job.request.owner]]:
            ranked.append((taken[job.request.owner], Scheduled(job, choice)))
            taken[job.request.owner] += 1
    ranked.sort(key=lambda one: one[0])
    return [scheduled for _, scheduled in ranked]


def _remaining(job: Job) -> tuple[int, int]:
    """Return the sort key: tokens left, then order of arrival."""
    return job.remaining, job.number
