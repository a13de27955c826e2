"""Who takes part in a step: which requests get a slot, and how many of their ids the target sees. Knows slots and
lengths, no drafts and no logits.

Everything that decodes takes part in every step. Prompts share the step's budget, so that a long one never stalls
another request's stream for longer than one chunk: the shortest goes first, and a quarter is the oldest one's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection

from codespec.models.language_model import LanguageModel
from codespec.models.slots import SlotPool
from codespec.sequence import Sequence

OLDEST_SHARE = 4  # one in so many tokens of the prompts' budget


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

    def schedule(self, only: Collection[Sequence] | None = None) -> list[tuple[Sequence, int]]:
        """The sequences of this step, of those that may begin or go on (`only`; None: all), each with how many pending
        ids it feeds: all of them when it decodes, none (and so it is left out) when it only reads and has read.
        """
        self._admit(only)
        feeds = {sequence: sequence.num_wanted for sequence in self.running}
        feeds.update(self._share_budget([sequence for sequence, wanted in feeds.items() if wanted > 1]))
        return [(sequence, feed) for sequence, feed in feeds.items() if feed]

    def pause(self, sequence: Sequence) -> None:
        """Takes a running sequence's slot; it finds again there what it has read if nobody else takes it meanwhile."""
        self._free(sequence)
        sequence.slot, sequence.cached = -1, 0
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out and frees its slot."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            self._free(sequence)

    def _free(self, sequence: Sequence) -> None:
        """The slot keeps its keys and values for whoever begins alike; an audit's is empty, so that it is given up
        before any document's.
        """
        self.running.remove(sequence)
        length = 0 if sequence.audit else min(sequence.cached, len(sequence.ids))
        self.target.rollback(sequence.slot, length)
        self.pool.release(sequence.slot, sequence.ids[:length], self._rotary_key(sequence))

    def _share_budget(self, readers: list[Sequence]) -> dict[Sequence, int]:
        feeds, left = dict.fromkeys(readers, 0), self.prefill_chunk
        shares = [(reader, self.prefill_chunk // OLDEST_SHARE) for reader in readers[:1]]
        shares += [(reader, left) for reader in sorted(readers, key=lambda reader: reader.num_wanted)]
        for reader, most in shares:
            feed = min(reader.num_wanted - feeds[reader], most, left)
            feeds[reader] += feed
            left -= feed
        return feeds

    def _admit(self, only: Collection[Sequence] | None) -> None:
        for sequence in list(self.waiting):
            if len(self.running) >= self.max_batch:
                break
            if (only is None or sequence in only) and self._may_start(sequence):
                self.waiting.remove(sequence)
                self._start(sequence)

    def _may_start(self, sequence: Sequence) -> bool:
        """Whether the prefill that it shares is done, or is not to be had any more."""
        parent, shared = sequence.parent, len(sequence.prompt_ids) - 1
        return parent is None or bool(parent.finish_reason or parent.num_generated or parent.cached >= shared)

    def _start(self, sequence: Sequence) -> None:
        """Gives a sequence its slot, for the first time or after a pause."""
        parent, shared = sequence.parent, len(sequence.prompt_ids) - 1
        lease = self.pool.acquire(sequence.ids, self._rotary_key(sequence), sequence.request.owner)
        source, cached = lease.source, min(lease.shared, len(sequence.ids) - 1)  # the last id's row makes a choice
        if parent is not None and parent in self.running and parent.cached >= shared > cached:
            source, cached = parent.slot, shared
        sequence.slot, sequence.cached = lease.slot, cached
        self.running.append(sequence)  # first, so that it is removed like any other if the model fails
        if source != lease.slot and cached:
            self.target.fork(source, lease.slot, cached)
        self.target.admit(lease.slot, sequence.length_limit, cached)
        if not sequence.had_slot:
            sequence.had_slot = True
            sequence.stats.cached_tokens = cached
            sequence.stats.queue_ms = (time.perf_counter() - sequence.started) * 1000

    def _rotary_key(self, sequence: Sequence) -> int:
        return self.target.rotary_key(sequence.length_limit)
