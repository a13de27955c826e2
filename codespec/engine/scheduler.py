"""Who takes part in a step: which requests get a slot, and how many of their ids the target sees. Knows slots and
lengths, no drafts and no logits.

Everything that decodes takes part in every step; prompts share what is left of the step's budget, oldest first, so
that a long prompt never stalls another request's stream for longer than one chunk.
"""

from __future__ import annotations

import time
from collections import deque

from codespec.models.language_model import LanguageModel
from codespec.models.slots import SlotPool
from codespec.sequence import Sequence


class Scheduler:
    """Continuous batching over the target's slots; at most `max_batch` of them take part in a step."""

    def __init__(self, target: LanguageModel, max_batch: int, prefill_chunk: int, slots: int) -> None:
        assert slots >= max_batch
        self.target = target
        self.max_batch = max_batch
        self.prefill_chunk = prefill_chunk
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.pool = SlotPool(slots)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        self.waiting.append(sequence)

    def schedule(self) -> list[tuple[Sequence, int]]:
        """The sequences of this step, each with how many pending ids it feeds: all of them when it decodes, none
        (and so it is left out) when it only reads and has read.
        """
        self._admit()
        budget = self.prefill_chunk
        step = []
        for sequence in self.running:
            wanted = sequence.num_wanted
            feed = wanted if wanted == 1 else min(wanted, budget)
            if wanted > 1:
                budget -= feed
            if feed:
                step.append((sequence, feed))
        return step

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out and frees its slot, which keeps its keys and values for whoever begins alike; an
        audit's is empty, so that it is given up before any document's.
        """
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        length = 0 if sequence.audit else min(sequence.cached, len(sequence.ids))
        self.target.rollback(sequence.slot, length)
        self.pool.release(sequence.slot, sequence.ids[:length], self._rotary_key(sequence))

    def _admit(self) -> None:
        blocked = []
        while self.waiting and len(self.running) < self.max_batch:
            sequence = self.waiting.popleft()
            if not self._start(sequence):
                blocked.append(sequence)
        self.waiting.extendleft(reversed(blocked))

    def _start(self, sequence: Sequence) -> bool:
        """Gives a sequence its slot; False while it waits for the prefill it shares."""
        parent, shared = sequence.parent, len(sequence.prompt_ids) - 1
        sharing = parent is not None and parent in self.running
        if parent is not None and (parent in self.waiting or (sharing and parent.cached < shared)):
            return False
        lease = self.pool.acquire(sequence.prompt_ids, self._rotary_key(sequence), sequence.request.owner)
        source, cached = lease.source, min(lease.shared, shared)  # the last id's row makes the first choice
        if parent is not None and sharing and cached < shared:
            source, cached = parent.slot, shared
        sequence.slot, sequence.cached = lease.slot, cached
        self.running.append(sequence)  # first, so that it is removed like any other if the model fails
        if source != lease.slot and cached:
            self.target.fork(source, lease.slot, cached)
        self.target.admit(lease.slot, sequence.length_limit, cached)
        sequence.stats.cached_tokens = cached
        sequence.stats.queue_ms = (time.perf_counter() - sequence.started) * 1000
        return True

    def _rotary_key(self, sequence: Sequence) -> int:
        return self.target.rotary_key(sequence.length_limit)
